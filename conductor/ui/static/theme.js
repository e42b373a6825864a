// theme.js runs before the first paint, so that a chosen theme does not flash.
// The choice is in localStorage: "light", "dark", or none for that of the system.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("conductor.theme"); } catch { /* storage is off: follow the system */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
