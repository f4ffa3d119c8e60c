// Installs a machine where units are held: the same row. One call of a SQL function (migration
// rack_operations), and therefore one transaction. Twice at once: one installs, the other is told.
import { moduleDisabled } from "../access/results.ts";
import type { Db } from "../database/client.ts";
import { rackReservationDecided } from "./decided.ts";
import { rackPromoteCall } from "./queries/operations.ts";
import {
  machineAlreadyPlaced,
  machineDoesNotFit,
  machineNotFound,
  type PromoteRackReservationResult,
  rackReservationExpired,
  rackReservationNotFound,
  rackReservationSettled,
} from "./results.ts";

/** The deadline is judged at this moment. @throws TryAgain when the machine or the rack stays locked. */
export async function rackReservationPromote(
  db: Db,
  reservationId: string,
  machineId: string,
): Promise<PromoteRackReservationResult> {
  const answer = await rackPromoteCall(db, reservationId, machineId);
  switch (answer.outcome) {
    case "promoted":
      return {
        kind: "RackReservationPromoted",
        rackReservation: await rackReservationDecided(db, reservationId),
      };
    case "not_found":
      return rackReservationNotFound();
    case "machine_not_found":
      return machineNotFound();
    case "module_disabled":
      return moduleDisabled("datacenter");
    case "settled":
      return rackReservationSettled(await rackReservationDecided(db, reservationId));
    case "expired":
      return rackReservationExpired(await rackReservationDecided(db, reservationId));
    case "placed":
      return machineAlreadyPlaced(await rackReservationDecided(db, answer.placementId));
    case "misfit":
      return machineDoesNotFit(answer.misfits ?? []);
  }
}
