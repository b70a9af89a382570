// Theme and language before anything is shown, so that nothing flashes. See preferences.js for the rest.
try {
  const kept = JSON.parse(localStorage.getItem("lpx.preferences") || "{}");
  document.documentElement.dataset.theme = ["light", "dark"].includes(kept.theme) ? kept.theme : "system";
} catch {
  document.documentElement.dataset.theme = "system";
}
