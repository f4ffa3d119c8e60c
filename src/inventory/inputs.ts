import { z } from "zod";
import { globalIdOf } from "../graphql/globalId.ts";
import { optional, text, wholeNumber } from "../graphql/input.ts";
import { REJECTION_REASONS } from "./rejections.ts";
import { MACHINE_AVAILABILITIES, MACHINE_DEPTHS, MACHINE_STATUSES } from "./rows.ts";

const siteCode = text(50);
/** Rack units: whole ones. */
export const heightUnits = z
  .number()
  .int()
  .min(1, "must be at least 1: machines of 0 units, and half units, cannot be placed yet")
  .max(100, "must be at most 100");
export const powerWatts = wholeNumber(0, 1_000_000);
const labels = z.array(text(100)).max(64, "must have at most 64 entries");

export const createSiteInput = z.object({ code: siteCode, name: text(200) });
export const createMachineInput = z.object({
  assetTag: text(100),
  siteCode,
  manufacturer: text(200),
  model: text(200),
  cpuCores: wholeNumber(1, 100_000),
  memoryGib: wholeNumber(1, 100_000_000),
  storageGib: wholeNumber(0, 1_000_000_000),
  labels: optional(labels),
  status: optional(z.enum(MACHINE_STATUSES)),
  heightUnits: optional(heightUnits),
  depth: optional(z.enum(MACHINE_DEPTHS)),
  powerWatts: optional(powerWatts),
});
export const setMachineStatusInput = z.object({
  machineId: globalIdOf("Machine"),
  status: z.enum(MACHINE_STATUSES),
});
export const machineFilter = z.object({
  siteCode: optional(siteCode),
  manufacturer: optional(text(200)),
  status: optional(z.enum(MACHINE_STATUSES)),
  availability: optional(z.enum(MACHINE_AVAILABILITIES)),
  search: optional(text(200)),
});
/** An empty string is refused: it is a mistake, not a wish for any machine. */
export const machineRequirements = z.object({
  siteCode: optional(siteCode),
  manufacturer: optional(text(200)),
  model: optional(text(200)),
  minCpuCores: optional(wholeNumber(0, 100_000)),
  minMemoryGib: optional(wholeNumber(0, 100_000_000)),
  minStorageGib: optional(wholeNumber(0, 1_000_000_000)),
  labels: optional(labels),
  installed: optional(z.boolean()),
});
export const candidateFilter = z.object({
  verdict: optional(z.enum(["eligible", "rejected"])),
  reason: optional(z.enum(REJECTION_REASONS)),
});
export const fleetArguments = z.object({ siteCode: optional(siteCode) });

/** A whole number as a file writes it. */
const digits = (bounds: z.ZodType<number, number>) =>
  z
    .string()
    .regex(/^\d{1,15}$/, "must be a whole number")
    .transform(Number)
    .pipe(bounds);

/** A field that may be left empty, or whose column may be absent. */
const blank = <Schema extends z.ZodType>(schema: Schema) =>
  z.preprocess((value) => (value === "" || value === undefined ? null : value), schema.nullable());

/** One row of an import file, under the file's column names; parses to what machine_import takes. */
export const importedMachine = z
  .object({
    asset_tag: createMachineInput.shape.assetTag,
    site: siteCode,
    location: blank(text(200)),
    manufacturer: createMachineInput.shape.manufacturer,
    model: createMachineInput.shape.model,
    cpu_cores: digits(createMachineInput.shape.cpuCores),
    memory_gib: digits(createMachineInput.shape.memoryGib),
    storage_gib: digits(createMachineInput.shape.storageGib),
    labels: z
      .string()
      .default("")
      .transform((value) => [
        ...new Set(
          value
            .split(";")
            .map((label) => label.trim())
            .filter((label) => label !== ""),
        ),
      ])
      .pipe(labels),
    status: z.preprocess(
      (value) => (typeof value === "string" && value !== "" ? value.toLowerCase() : "planned"),
      z.enum(MACHINE_STATUSES, { error: `must be one of ${MACHINE_STATUSES.join(", ")}` }),
    ),
    monthly_price_eur: blank(
      z
        .string()
        .regex(/^\d{1,7}(\.\d{1,2})?$/, "must be an amount such as 49 or 49.90")
        .transform((value) => {
          const [euros, cents = ""] = value.split(".");
          return Number(euros) * 100 + Number(cents.padEnd(2, "0"));
        }),
    ),
    height_units: blank(digits(heightUnits)),
    depth: z.preprocess(
      (value) => (typeof value === "string" && value !== "" ? value.toLowerCase() : null),
      z.enum(MACHINE_DEPTHS, { error: "must be half or full" }).nullable(),
    ),
    power_watts: blank(digits(powerWatts)),
  })
  .transform(({ monthly_price_eur, ...row }) => ({ ...row, monthly_price_cents: monthly_price_eur }));
