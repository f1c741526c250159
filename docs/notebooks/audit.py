# %% [markdown]
# # An audit
#
# A published mechanism claims epsilon 1. Does the claim hold? An audit plays the adversary who knows all rows except
# one. It draws the noise many times for two neighbouring tables and counts how often it can tell them apart. The
# results are lower bounds on epsilon and delta: for a sound mechanism they stay below the claim. In a script, run this
# below `if __name__ == "__main__":`.

# %%
import dpdist

one = dpdist.PrivacyLoss.parse(1)
names = ("sn", "laplace", "two-sided-wishart")
audits = {name: dpdist.audit_mechanism(name, one) for name in names}
for found in audits.values():
    print(found)

# %% [markdown]
# `sn` is the Wishart mechanism with the sensitivity stated in its paper. Some of its outputs are possible for only one
# of the two tables and identify it with certainty. The claim is rejected for every epsilon. The pure repair,
# `two-sided-wishart`, satisfies it, and so does Laplace noise.

# %%
for name in names:
    print(f"{name}\n{audits[name].describe()}\n")

# %% [markdown]
# **Refusal.** A release with a mechanism that does not satisfy its claim is refused, with the proved value.

# %%
try:
    request = dpdist.ReleaseRequest("sn", one, clip_norm=1)
    print(dpdist.forecast_release(request, columns=10, rows=10_000))
except dpdist.RefusedError as error:
    print(error)
