// A classic script in the head, so that the stored theme is there before anything is painted.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
