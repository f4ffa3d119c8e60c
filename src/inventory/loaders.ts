import DataLoader from "dataloader";
import { sightOf, type Viewer } from "../access/viewer.ts";
import { byKey } from "../database/byKey.ts";
import type { Db } from "../database/client.ts";
import { machinesByIds } from "./queries/machines.ts";
import type { MachineRow, SiteRow } from "./rows.ts";

/** Batched reads of one request, within the viewer's sight. */
export interface InventoryLoaders {
  /** Sites are for everybody who may reserve. */
  readonly site: DataLoader<string, SiteRow | null>;
  /** All machines for operators; for others those that stand in a reservation they may see. */
  readonly machine: DataLoader<string, MachineRow | null>;
}

export function inventoryLoaders(db: Db, viewer: Viewer | null): InventoryLoaders {
  const sight = sightOf(viewer);
  return {
    site: new DataLoader(async (ids) => {
      if (sight.kind === "none") return ids.map(() => null);
      const rows = await db.site.findMany({
        where: { id: { in: [...ids] } },
        select: { id: true, code: true, name: true },
      });
      return byKey(ids, rows, (row) => row.id);
    }),
    machine: new DataLoader(async (ids) =>
      byKey(ids, await machinesByIds(db, viewer?.role === "operator", sight, ids), (row) => row.id),
    ),
  };
}
