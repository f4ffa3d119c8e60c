import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { InvalidInput } from "../refusal.ts";
import { machineInUse, type SetMachineStatusResult } from "./results.ts";
import type { MachineStatus } from "./rows.ts";

/**
 * Sets a machine's status; the SQL function machine_set_status decides under the machine's lock. A
 * live hold or a binding refuses. Twice: the same result.
 * @throws InvalidInput for an unknown machine; TryAgain when its row stays locked.
 */
export async function machineStatusSet(
  db: Db,
  machineId: string,
  status: MachineStatus,
): Promise<SetMachineStatusResult> {
  const rows = await withRetry(
    () => db.$queryRaw<{ outcome: "set" | "in_use" | "not_found" }[]>`
      SELECT machine_set_status(${machineId}::uuid, ${status}) AS outcome`,
  );
  switch (rows[0]?.outcome) {
    case "set":
      return { kind: "MachineStatusSet", machineId };
    case "in_use":
      return machineInUse(...(await inTheWay(db, machineId)));
    default:
      throw new InvalidInput("input.machineId", "names no machine");
  }
}

async function inTheWay(
  db: Db,
  machineId: string,
): Promise<[{ id: string; assetTag: string }, number | null]> {
  const rows = await db.$queryRaw<{ assetTag: string; heldForMs: number | null }[]>`
    SELECT asset_tag AS "assetTag",
           ceil(extract(epoch FROM held_until - statement_timestamp()) * 1000)::float8 AS "heldForMs"
    FROM machine_now WHERE id = ${machineId}::uuid`;
  return [{ id: machineId, assetTag: rows[0]?.assetTag ?? "" }, rows[0]?.heldForMs ?? null];
}
