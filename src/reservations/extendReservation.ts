// Prolongs a hold, once. One call of a SQL function (migration reservation_life_cycle), and therefore
// one transaction. Twice at once: the hold time is added once, the other is told that nothing more can be added.
import { moduleDisabled } from "../access/results.ts";
import { followsSwitch, sightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import {
  alreadyConverted,
  type ExtendReservationResult,
  extensionLimitReached,
  reservationNotFound,
} from "./results.ts";
import { bindingOf, ended, reservationSettled } from "./settled.ts";

/**
 * Adds the hold time once more, up to twice the hold time in all.
 * @throws TryAgain when the machine stays locked.
 */
export async function reservationExtend(
  db: Db,
  viewer: Viewer | null,
  reservationId: string,
): Promise<ExtendReservationResult> {
  const rows = await withRetry(
    () => db.$queryRaw<
      {
        outcome:
          | "extended"
          | "not_found"
          | "module_disabled"
          | "limit"
          | "converted"
          | "expired"
          | "cancelled";
      }[]
    >`
      SELECT reservation_extend(${reservationId}::uuid, ${sightParameter(viewer)}::uuid,
                                ${followsSwitch(viewer)}::boolean) AS outcome`,
  );
  const sight = sightOf(viewer);
  const outcome = rows[0]?.outcome ?? "not_found";
  switch (outcome) {
    case "not_found":
      return reservationNotFound();
    case "module_disabled":
      return moduleDisabled("datacenter");
    case "extended":
      return { kind: "ReservationExtended", reservation: await reservationSettled(db, sight, reservationId) };
    case "limit":
      return extensionLimitReached(await reservationSettled(db, sight, reservationId));
    case "converted":
      return alreadyConverted(await bindingOf(db, sight, "reservationId", reservationId));
    case "expired":
    case "cancelled":
      return ended(outcome, await reservationSettled(db, sight, reservationId));
  }
}
