// Numbers, times and sizes as text.

const THIN = "\u202f";

// `count` significant digits, without an exponent where possible.
export function digits(value, count = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e9 || size < 1e-6)) return value.toExponential(count - 1);
  return size >= 10 ** count ? whole(Math.round(value)) : String(Number(value.toPrecision(count)));
}

// An integer with thin spaces between groups of digits.
export function whole(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en").replaceAll(",", THIN);
}

const UNITS = [["ns", 1e-6], ["µs", 1e-3], ["ms", 1], ["s", 1000]];

// Milliseconds in the most readable unit.
export function time(ms, count = 4) {
  if (ms === null || ms === undefined) return "–";
  const [unit, size] = UNITS.findLast(([, one]) => Math.abs(ms || 1) >= one) || UNITS[0];
  return `${digits(ms / size, count)} ${unit}`;
}

// Seconds as "4.2 s", "2 min 5 s", "1 h 2 min"; "" if unknown.
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 60) return time(seconds * 1000, seconds < 10 ? 2 : 3);
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${digits(value, 3)} ${units[at]}`;
}

export function percent(share, count = 2) {
  return share === null || share === undefined ? "–" : `${digits(100 * share, count)} %`;
}

// count(1, "task") -> "1 task", count(2, "task") -> "2 tasks".
export function count(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// A unit with its configuration: "CPU (ONNX), 2 threads, batch 8"; null without a unit.
export function configuration(unit, threads, batch) {
  if (unit === null) return null;
  return [unit, threads !== null && count(threads, "thread"), batch !== null && `batch ${batch}`].filter(Boolean).join(", ");
}

// Orders texts, comparing the numbers in them as numbers.
export const collate = new Intl.Collator(undefined, { numeric: true }).compare;

// The parts of a comparison's base that differ from the compared result: "yolo fp32", "CPU (ONNX)" or "yolo fp32 on CPU (ONNX)".
export function againstWords(model, unit, ownModel, ownUnit) {
  if (unit === ownUnit) return model;
  return model === ownModel ? unit : `${model} on ${unit}`;
}
