import { z } from "zod";

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A decoded global id. */
export interface GlobalId {
  /** Name of the GraphQL type. */
  readonly type: string;
  /** The row's uuid, in lower case. */
  readonly id: string;
}

/** Encodes a row's uuid as the global id of a type. */
export function globalIdEncode(type: string, id: string): string {
  return Buffer.from(`${type}:${id}`).toString("base64");
}

/** Decodes a global id; null when it is not one. No look-up is made. */
export function globalIdDecode(value: string): GlobalId | null {
  if (value.length > 200) return null;
  const text = Buffer.from(value, "base64").toString("utf8");
  const colon = text.indexOf(":");
  const type = text.slice(0, colon);
  const id = text.slice(colon + 1);
  if (colon < 1 || !UUID.test(id) || globalIdEncode(type, id) !== value) return null;
  return { type, id };
}

/** An argument that must be the global id of `type`; parses to the row's uuid. */
export function globalIdOf(type: string): z.ZodType<string, string> {
  return z.string().transform((value, context) => {
    const decoded = globalIdDecode(value);
    if (decoded?.type === type) return decoded.id;
    context.addIssue({
      code: "custom",
      message:
        decoded === null
          ? `is not a global id; send the id of a ${type}`
          : `is the id of a ${decoded.type}, not of a ${type}`,
    });
    return z.NEVER;
  });
}
