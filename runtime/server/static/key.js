// The key of a server that asks for one, for all of its pages: kept in the tab, sent with each question.
"use strict";

const KEY = "palmette-key";
const $ = (id) => document.getElementById(id);

const keyed = () => {
  const key = sessionStorage.getItem(KEY);
  return key === null ? {} : { authorization: `Bearer ${key}` };
};

function askForKey() {
  const tried = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  $("ask-note").textContent = tried
    ? "The server does not take this key. Try another one."
    : "This server asks for a key. It is kept in this tab only.";
  if (!$("ask").open) $("ask").showModal();
  return new Promise((resolve) => {
    $("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, $("key").value.trim().replace(/[^\x21-\x7e]/g, ""));
      $("key").value = "";
      $("ask").close();
      resolve();
    };
    $("ask").oncancel = (event) => event.preventDefault();
  });
}
