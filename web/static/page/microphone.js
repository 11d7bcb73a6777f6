/** The caller's microphone. */

import { Problem } from "./problems.js";

/** Opens it. Throws a Problem that says what to do. */
export async function openMicrophone({ deviceId, echoCancellation, noiseSuppression }) {
  if (!window.isSecureContext) throw new Problem("insecure");
  if (!navigator.mediaDevices?.getUserMedia) throw new Problem("no_microphone_api");
  const audio = { echoCancellation, noiseSuppression, autoGainControl: true, channelCount: 1 };
  if (deviceId) audio.deviceId = { exact: deviceId };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Problem(error.name, error.message);
  }
}

/** Fills a list with the devices of a kind; their names are known once the microphone was allowed. */
export async function listDevices(select, kind) {
  if (!navigator.mediaDevices?.enumerateDevices) return;
  const devices = (await navigator.mediaDevices.enumerateDevices()).filter((device) => device.kind === kind);
  const chosen = select.value;
  const options = devices
    .filter((device) => device.deviceId && device.deviceId !== "default")
    .map((device, index) => new Option(device.label || `${index + 1}`, device.deviceId));
  select.replaceChildren(new Option("System default", ""), ...options);
  select.value = options.some((option) => option.value === chosen) ? chosen : "";
}
