// All elements of the page are made here, so that text is never interpreted as markup.

/** Creates an element with a class and a text. */
export function element(name, className = "", text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

/** Sets an element's text if it differs. An unchanged text keeps the user's selection. */
export function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}
