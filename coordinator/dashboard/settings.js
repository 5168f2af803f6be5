// The theme, and the form that asks for an API key.

import { storeKey, storedKey } from "./api.js";
import { byId, setText, show } from "./dom.js";

const STORED_THEME = "shadowprefill.theme";
const THEMES = ["system", "light", "dark"];

export function startTheme() {
  const button = byId("theme");
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    setText(button, `Theme: ${theme}`);
  };
  const stored = localStorage.getItem(STORED_THEME);
  apply(THEMES.includes(stored) ? stored : "system");
  button.addEventListener("click", () => {
    const at = THEMES.indexOf(document.documentElement.dataset.theme);
    const next = THEMES[(at + 1) % THEMES.length];
    localStorage.setItem(STORED_THEME, next);
    apply(next);
  });
}

export function startKey(onChange) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    storeKey(byId("key").value.trim());
    byId("key").value = "";
    onChange();
  });
  byId("forget-key").addEventListener("click", () => {
    storeKey(null);
    onChange();
  });
}

export function askForKey() {
  const isNew = byId("key-form").hidden;
  setText(byId("key-problem"), storedKey() ? "The coordinator does not know this key." : "");
  storeKey(null);
  show("key-form", true);
  if (isNew) byId("key").focus();
}

export function showKeyState() {
  show("key-form", false);
  show("forget-key", storedKey() !== null);
}
