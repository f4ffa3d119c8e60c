import DataLoader from "dataloader";
import type { Viewer } from "../access/viewer.ts";
import { byKey } from "../database/byKey.ts";
import type { Db } from "../database/client.ts";
import {
  placementsOfMachines,
  rackGaps,
  rackOccupants,
  rackReservationsByIds,
  racksByIds,
} from "./queries/racks.ts";
import type { RackDepth, RackFace, RackReservationRow, RackRow } from "./rows.ts";

/** Which stretches of a rack are asked for. */
export interface GapsKey {
  readonly rackId: string;
  readonly face: RackFace;
  readonly depth: RackDepth;
}

/** Batched reads of one request. Racks are an operator's business: nobody else sees any. */
export interface RackLoaders {
  readonly rack: DataLoader<string, RackRow | null>;
  readonly rackReservation: DataLoader<string, RackReservationRow | null>;
  /** A rack reservation that was promoted. */
  readonly placement: DataLoader<string, RackReservationRow | null>;
  readonly placementOfMachine: DataLoader<string, RackReservationRow | null>;
  /** What takes units of a rack now, from the bottom. */
  readonly rackOccupants: DataLoader<string, readonly RackReservationRow[]>;
  /** Sizes of the free stretches. */
  readonly rackGaps: DataLoader<GapsKey, readonly number[], string>;
}

export function rackLoaders(db: Db, viewer: Viewer | null): RackLoaders {
  const operator = viewer?.role === "operator";
  const reservations = async (ids: readonly string[]) => (operator ? rackReservationsByIds(db, ids) : []);
  return {
    rack: new DataLoader(async (ids) =>
      byKey(ids, operator ? await racksByIds(db, ids) : [], (row) => row.id),
    ),
    rackReservation: new DataLoader(async (ids) => byKey(ids, await reservations(ids), (row) => row.id)),
    placement: new DataLoader(async (ids) => {
      const rows = await reservations(ids);
      return byKey(
        ids,
        rows.filter((row) => row.state === "promoted"),
        (row) => row.id,
      );
    }),
    placementOfMachine: new DataLoader(async (ids) =>
      byKey(ids, operator ? await placementsOfMachines(db, ids) : [], (row) => row.machineId),
    ),
    rackOccupants: new DataLoader(async (ids) => {
      const rows = operator ? await rackOccupants(db, ids) : [];
      const byRack = Map.groupBy(rows, (row) => row.rackId);
      return ids.map((id) => byRack.get(id) ?? []);
    }),
    rackGaps: new DataLoader(
      async (keys) => {
        const gaps = new Map<string, number[]>();
        for (const group of Map.groupBy(keys, ({ face, depth }) => `${face} ${depth}`).values()) {
          const [{ face, depth }] = group as [GapsKey, ...GapsKey[]];
          const rackIds = group.map((key) => key.rackId);
          for (const gap of operator ? await rackGaps(db, rackIds, face, depth) : []) {
            const key = gapsKey({ rackId: gap.rackId, face, depth });
            gaps.set(key, [...(gaps.get(key) ?? []), gap.size]);
          }
        }
        return keys.map((key) => gaps.get(gapsKey(key)) ?? []);
      },
      { cacheKeyFn: gapsKey },
    ),
  };
}

function gapsKey({ rackId, face, depth }: GapsKey): string {
  return `${rackId} ${face} ${depth}`;
}
