// Gives held units back. One call of a SQL function (migration rack_operations), and therefore one
// transaction. Twice at once: one cancels, the other is told.
import type { Db } from "../database/client.ts";
import { rackReservationDecided } from "./decided.ts";
import { rackCancelCall } from "./queries/operations.ts";
import {
  type CancelRackReservationResult,
  rackReservationExpired,
  rackReservationNotFound,
  rackReservationSettled,
} from "./results.ts";

/** Works with the switch closed. @throws TryAgain when the rack stays locked. */
export async function rackReservationCancel(
  db: Db,
  reservationId: string,
): Promise<CancelRackReservationResult> {
  const outcome = await rackCancelCall(db, reservationId);
  switch (outcome) {
    case "not_found":
      return rackReservationNotFound();
    case "cancelled":
      return {
        kind: "RackReservationCancelled",
        rackReservation: await rackReservationDecided(db, reservationId),
      };
    case "settled":
      return rackReservationSettled(await rackReservationDecided(db, reservationId));
    case "expired":
      return rackReservationExpired(await rackReservationDecided(db, reservationId));
  }
}
