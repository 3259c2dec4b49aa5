export { isFailure } from "./session.js";
