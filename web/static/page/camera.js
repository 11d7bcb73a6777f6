/** The caller's camera: for models that see. */

import { Problem } from "./problems.js";

const WIDTH = 640;
const HEIGHT = 480;
const RATE = 10; // pictures a second: a model takes one for every frame of sound at most

/** Opens it. Throws a Problem that says what to do. */
export async function openCamera() {
  const video = { facingMode: "user", width: { ideal: WIDTH }, height: { ideal: HEIGHT }, frameRate: { ideal: RATE } };
  try {
    return await navigator.mediaDevices.getUserMedia({ video });
  } catch (error) {
    throw new Problem(error.name === "NotAllowedError" ? "camera_blocked" : "camera", error.message);
  }
}

/** What a video element shows, as base64 of a JPEG; null while it shows nothing. */
export function takePicture(view) {
  const { videoWidth: width, videoHeight: height } = view;
  if (!width) return null;
  const scale = Math.min(1, WIDTH / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.getContext("2d").drawImage(view, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.7).split(",")[1];
}
