// Ends a hold by decision. One call of a SQL function (migration reservation_life_cycle), and therefore
// one transaction. Twice at once: one ends it, the other is told.
import { sightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { alreadyConverted, type CancelReservationResult, reservationNotFound } from "./results.ts";
import { bindingOf, ended, reservationSettled } from "./settled.ts";

/**
 * Ends a hold by decision; its machine is for sale at once. Works with the switch closed.
 * @throws TryAgain when the machine stays locked.
 */
export async function reservationCancel(
  db: Db,
  viewer: Viewer | null,
  reservationId: string,
  reason: string | null,
): Promise<CancelReservationResult> {
  const rows = await withRetry(
    () => db.$queryRaw<{ outcome: "released" | "not_found" | "converted" | "expired" | "cancelled" }[]>`
      SELECT reservation_cancel(${reservationId}::uuid, ${sightParameter(viewer)}::uuid, ${reason}::text) AS outcome`,
  );
  const sight = sightOf(viewer);
  const outcome = rows[0]?.outcome ?? "not_found";
  switch (outcome) {
    case "not_found":
      return reservationNotFound();
    case "released":
      return { kind: "ReservationReleased", reservation: await reservationSettled(db, sight, reservationId) };
    case "converted":
      return alreadyConverted(await bindingOf(db, sight, "reservationId", reservationId));
    case "expired":
    case "cancelled":
      return ended(outcome, await reservationSettled(db, sight, reservationId));
  }
}
