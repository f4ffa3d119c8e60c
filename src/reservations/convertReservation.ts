// Turns a hold into a binding. One call of a SQL function (migration reservation_life_cycle), and therefore
// one transaction. Twice at once: one becomes the binding, the other is told of it.
import { moduleDisabled } from "../access/results.ts";
import { followsSwitch, sightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { alreadyConverted, type ConvertReservationResult, reservationNotFound } from "./results.ts";
import { bindingOf, ended, reservationSettled } from "./settled.ts";

/**
 * Turns a hold into a binding: the customer has paid. The deadline is judged under the lock.
 * @throws TryAgain when the machine stays locked.
 */
export async function reservationConvert(
  db: Db,
  viewer: Viewer | null,
  reservationId: string,
  serviceReference: string,
): Promise<ConvertReservationResult> {
  const rows = await withRetry(
    () => db.$queryRaw<
      {
        outcome:
          | "converted"
          | "not_found"
          | "module_disabled"
          | "already_converted"
          | "expired"
          | "cancelled";
      }[]
    >`
      SELECT reservation_convert(${reservationId}::uuid, ${sightParameter(viewer)}::uuid, ${serviceReference},
                                 ${followsSwitch(viewer)}::boolean) AS outcome`,
  );
  const sight = sightOf(viewer);
  const outcome = rows[0]?.outcome ?? "not_found";
  switch (outcome) {
    case "not_found":
      return reservationNotFound();
    case "module_disabled":
      return moduleDisabled("datacenter");
    case "converted":
      return {
        kind: "ReservationConverted",
        reservation: await reservationSettled(db, sight, reservationId),
        binding: await bindingOf(db, sight, "reservationId", reservationId),
      };
    case "already_converted":
      return alreadyConverted(await bindingOf(db, sight, "reservationId", reservationId));
    case "expired":
    case "cancelled":
      return ended(outcome, await reservationSettled(db, sight, reservationId));
  }
}
