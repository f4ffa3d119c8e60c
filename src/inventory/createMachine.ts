import type { Db } from "../database/client.ts";
import { violates } from "../database/violation.ts";
import { assetTagTaken, type CreateMachineResult, siteNotFound } from "./results.ts";
import type { MachineDepth, MachineStatus } from "./rows.ts";

/** A machine as it is entered by hand. */
export interface NewMachine {
  readonly assetTag: string;
  readonly siteCode: string;
  readonly manufacturer: string;
  readonly model: string;
  readonly cpuCores: number;
  readonly memoryGib: number;
  readonly storageGib: number;
  readonly labels: readonly string[] | null;
  /** Left out: PLANNED, since a machine is for sale only when somebody has said so. */
  readonly status: MachineStatus | null;
  /** Left out: 1. */
  readonly heightUnits: number | null;
  /** Left out: full. */
  readonly depth: MachineDepth | null;
  /** Left out: not known. */
  readonly powerWatts: number | null;
}

/** Creates a machine. Twice at once with one asset tag: one wins, the other gets AssetTagTaken. */
export async function machineCreate(db: Db, input: NewMachine): Promise<CreateMachineResult> {
  try {
    const rows = await db.$queryRaw<{ id: string }[]>`
      INSERT INTO machine (asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib, labels, status,
                           height_units, depth, power_watts)
      SELECT ${input.assetTag}, s.id, ${input.manufacturer}, ${input.model}, ${input.cpuCores}, ${input.memoryGib},
             ${input.storageGib}, ${[...new Set(input.labels ?? [])]}::text[], ${input.status ?? "planned"},
             ${input.heightUnits ?? 1}::integer, ${input.depth ?? "full"}, ${input.powerWatts}::integer
      FROM site s WHERE s.code = ${input.siteCode}
      RETURNING id`;
    return rows[0] === undefined
      ? siteNotFound(input.siteCode)
      : { kind: "MachineCreated", machineId: rows[0].id };
  } catch (error) {
    if (violates(error, "machine_asset_tag")) return assetTagTaken(input.assetTag);
    throw error;
  }
}
