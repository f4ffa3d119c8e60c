import type { Db } from "../database/client.ts";
import { rackReservationsByIds, racksByIds } from "./queries/racks.ts";
import type { RackReservationRow, RackRow } from "./rows.ts";

// What the operations read after the transaction that decided. The ids were seen by it, so the rows are there.

/** The rack reservation, or placement, that was decided on, as it is now. */
export async function rackReservationDecided(db: Db, id: string | null): Promise<RackReservationRow> {
  const row = id === null ? undefined : (await rackReservationsByIds(db, [id]))[0];
  if (row === undefined) throw new Error("a rack reservation that was decided on is gone");
  return row;
}

/** The rows that were decided on, in their order. */
export async function rackReservationsDecided(db: Db, ids: readonly string[]): Promise<RackReservationRow[]> {
  const rows = new Map((await rackReservationsByIds(db, ids)).map((row) => [row.id, row]));
  return ids.flatMap((id) => rows.get(id) ?? []);
}

/** The rack that was decided on, as it is now. */
export async function rackDecided(db: Db, id: string): Promise<RackRow> {
  const row = (await racksByIds(db, [id]))[0];
  if (row === undefined) throw new Error("a rack that was decided on is gone");
  return row;
}
