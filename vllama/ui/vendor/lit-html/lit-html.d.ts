export * from "lit-html";
import type { TemplateResult } from "lit-html";

/** As lit-html's own, but listeners that stand in a template know their event. */
export declare const html: (
  strings: TemplateStringsArray,
  ...values: (((event: FieldEvent) => unknown) | Renderable)[]
) => TemplateResult<1>;
