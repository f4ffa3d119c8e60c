import { z } from "zod";
import { InvalidInput } from "../refusal.ts";

/**
 * Checks an argument against its schema.
 * @param path name of the argument that `value` is, e.g. `input`; "" when `value` holds the field's arguments.
 * @throws InvalidInput naming the first field that is wrong.
 */
export function inputParse<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  path: string,
): z.output<Schema> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  throw new InvalidInput(
    [path, ...(issue?.path ?? [])].filter((part) => part !== "").join("."),
    issue?.message ?? "is not valid",
  );
}

/**
 * A text of 1 to `max` characters. Refused: empty or blank texts, control characters (the NUL byte
 * among them, which PostgreSQL cannot store) and halves of a surrogate pair.
 */
export function text(max: number) {
  return (
    z
      .string()
      .refine((value) => value.trim() !== "", { error: "must not be empty", abort: true })
      .refine((value) => [...value].length <= max, {
        error: `must have at most ${max} characters`,
        abort: true,
      })
      // Every control character but tab, line feed and carriage return.
      .refine((value) => !/[^\P{Cc}\t\n\r]/u.test(value) && value.isWellFormed(), {
        error: "must not contain control characters or broken surrogate pairs",
      })
  );
}

/** A whole number within bounds. */
export function wholeNumber(min: number, max: number) {
  return z.number().int().min(min, `must be at least ${min}`).max(max, `must be at most ${max}`);
}

/** An optional argument: left out and null mean the same, and parse to null. */
export function optional<Schema extends z.ZodType>(schema: Schema) {
  return schema.nullish().transform((value) => value ?? null);
}
