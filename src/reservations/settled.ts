import type { Sight } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { bindingsBy, reservationsByIds } from "./queries/reservations.ts";
import {
  type ReservationCancelled,
  type ReservationExpired,
  reservationCancelled,
  reservationExpired,
} from "./results.ts";
import type { BindingRow, ReservationRow } from "./rows.ts";

// What the operations on one hold or binding read after the transaction that decided. The ids were seen
// by it, so the rows are there.

/** The reservation that was decided on, as it is now. */
export async function reservationSettled(db: Db, sight: Sight, id: string): Promise<ReservationRow> {
  const row = (await reservationsByIds(db, sight, [id]))[0];
  if (row === undefined) throw new Error("a reservation that was decided on is gone");
  return row;
}

/** The binding that was decided on, by its id or its reservation's. */
export async function bindingOf(
  db: Db,
  sight: Sight,
  by: "id" | "reservationId",
  id: string,
): Promise<BindingRow> {
  const row = (await bindingsBy(db, sight, by, [id]))[0];
  if (row === undefined) throw new Error("a binding that was decided on is gone");
  return row;
}

/** The refusal for a hold that is over without a binding. */
export function ended(
  outcome: "expired" | "cancelled",
  reservation: ReservationRow,
): ReservationExpired | ReservationCancelled {
  return outcome === "expired" ? reservationExpired(reservation) : reservationCancelled(reservation);
}
