// Creates a rack. Twice at once with one name at one site: one wins, the other gets RackNameTaken.
import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import { siteNotFound } from "../inventory/results.ts";
import { type CreateRackResult, rackNameTaken } from "./results.ts";
import { RACK_COLUMNS, type RackRow, type UnitNumbering } from "./rows.ts";

/** A rack as it is entered. */
export interface NewRack {
  readonly siteCode: string;
  readonly name: string;
  readonly heightUnits: number;
  /** Left out: bottom_up. */
  readonly numbering: UnitNumbering | null;
  /** Left out: 1. */
  readonly startingUnit: number | null;
  /** Left out: no budget. */
  readonly powerBudgetWatts: number | null;
}

export async function rackCreate(db: Db, input: NewRack): Promise<CreateRackResult> {
  try {
    const rows = await db.$queryRaw<RackRow[]>`
      WITH r AS (
        INSERT INTO rack (site_id, name, height_units, numbering, starting_unit, power_budget_watts)
        SELECT s.id, ${input.name}, ${input.heightUnits}::integer, ${input.numbering ?? "bottom_up"},
               ${input.startingUnit ?? 1}::integer, ${input.powerBudgetWatts}::integer
        FROM site s WHERE s.code = ${input.siteCode}
        RETURNING *
      ) SELECT ${RACK_COLUMNS} FROM r`;
    return rows[0] === undefined ? siteNotFound(input.siteCode) : { kind: "RackCreated", rack: rows[0] };
  } catch (error) {
    if (violates(error, "rack_name")) return rackNameTaken(input.name);
    throw error;
  }
}
