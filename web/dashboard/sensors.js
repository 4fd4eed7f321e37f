// A device's sensor readings while it runs a task; "—" stands for a missing sensor.

import { bytes, digits, percent } from "./format.js";

const LACKS = "—";
export const LATE_S = 10;

const share = (value) => (value === null ? LACKS : percent(value));
const size = (value) => (value === null ? LACKS : bytes(value));
const heat = (value) => (value === null ? LACKS : `${Math.round(value)} °C`);
const power = (value) => (value === null ? LACKS : `${digits(value, 3)} W`);

// [[name, value], …] for the device, then for each GPU.
export function sensors(reading) {
  const several = reading.gpus.length > 1;
  return [
    [["CPU", share(reading.cpu)], ["Memory", size(reading.memory)], ["Temperature", heat(reading.temperature_c)], ["Power", power(reading.power_w)]],
    ...reading.gpus.map((gpu, index) => {
      const name = several ? `GPU ${index}` : "GPU";
      return [[name, share(gpu.utilisation)], [`${name} memory`, size(gpu.memory)], [`${name} temperature`, heat(gpu.temperature_c)], [`${name} power`, power(gpu.power_w)]];
    }),
  ];
}
