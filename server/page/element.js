// The one way in which the page makes elements: text is never markup.

/** An element with a class and a text. */
export function element(name, className = "", text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

/** Changes a text only if it is another, so that what is selected stays selected. */
export function say(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}
