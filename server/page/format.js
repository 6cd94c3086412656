// Formats numbers for people.

/** Formats a count. */
export function count(number) {
  return number.toLocaleString("en");
}

/** Formats a count with its noun. */
export function counted(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

/** Formats a number with about three digits. */
export function rough(number) {
  return number < 9.95 && number > 0 ? number.toFixed(1) : count(Math.round(number));
}

/** Formats a share between 0 and 1 as a percentage. */
export function percent(share) {
  return `${rough(100 * share)} %`;
}

/** Formats a time given in seconds. */
export function duration(seconds) {
  if (seconds < 0.00995) {
    return `${(1000 * seconds).toFixed(1)} ms`;
  }
  if (seconds < 0.9995) {
    return `${(1000 * seconds).toFixed()} ms`;
  }
  if (seconds < 59.95) {
    return `${seconds.toFixed(1)} s`;
  }
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** Formats a time to whole seconds. */
export function span(seconds) {
  if (seconds >= 3600) {
    return duration(seconds);
  }
  const [minutes, rest] = [Math.floor(seconds / 60), Math.floor(seconds % 60)];
  return [minutes > 0 && `${minutes} min`, (rest > 0 || minutes === 0) && `${rest} s`].filter(Boolean).join(" ");
}

/** Formats roughly how long ago something was. */
export function ago(seconds) {
  const minutes = (Math.round(seconds / 6) / 10).toFixed(1).replace(".0", "");
  return seconds < 99.5 ? `${Math.round(seconds)} s ago` : `${minutes} min ago`;
}

/** Formats a size in bytes. */
export function bytes(number) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? number : rough(number)} ${units[unit]}`;
}
