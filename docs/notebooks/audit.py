# %% [markdown]
# # An audit
#
# A published mechanism claims epsilon 1. Is that so? An audit plays the adversary who knows all rows but one. It draws
# the noise many times for two neighbouring tables, and looks how often it can tell them apart. What comes out are lower
# bounds: of a sound mechanism they stay below the claim. A script does this below `if __name__ == "__main__":`.

# %%
import dpdist

one = dpdist.PrivacyLoss.parse(1)
names = ("sn", "laplace", "two-sided-wishart")
audits = {name: dpdist.audit_mechanism(name, one) for name in names}
for found in audits.values():
    print(found)

# %% [markdown]
# `sn` is the Wishart mechanism with the sensitivity that its paper states. Some outputs can come from one of the two
# tables only: nobody who sees one doubts any more. Its claim is rejected, however large epsilon is chosen. The pure
# repair, `two-sided-wishart`, keeps it, and so does Laplace noise.

# %%
for name in names:
    print(f"{name}\n{audits[name].words()}\n")

# %% [markdown]
# **What a user sees.** A release by a mechanism that does not keep its claim is refused, with the true number.

# %%
try:
    request = dpdist.ReleaseRequest("sn", one, clip_norm=1)
    print(dpdist.forecast_release(request, columns=10, rows=10_000))
except dpdist.RefusedError as error:
    print(error)
