// The folds in the list of pages have no words: name each by the page that it unfolds, for screen readers.
document.addEventListener("DOMContentLoaded", () => {
  for (const fold of document.querySelectorAll("nav details > summary")) {
    const link = fold.closest("li")?.querySelector(":scope > a");
    fold.setAttribute("aria-label", `Pages below ${link?.textContent.trim() ?? "this one"}`);
  }
});
