// Conversion, extension, cancellation of a hold, and the release of a binding.
// Each is one call of a SQL function (migration reservation_life_cycle), and therefore one
// transaction. Twice at once: one wins, the other is told the end state it finds.
import { moduleDisabled } from "../access/results.ts";
import { followsSwitch, type Sight, sightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { bindingsBy, reservationsByIds } from "./queries/reservations.ts";
import {
  alreadyConverted,
  alreadyReleased,
  bindingNotFound,
  type CancelReservationResult,
  type ConvertReservationResult,
  type ExtendReservationResult,
  extensionLimitReached,
  type ReleaseBindingResult,
  reservationCancelled,
  reservationExpired,
  reservationNotFound,
} from "./results.ts";
import type { BindingRow, ReservationRow } from "./rows.ts";

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

/**
 * Ends a service; its machine goes to CLEANING. Works with the switch closed.
 * @throws TryAgain when the machine stays locked.
 */
export async function bindingRelease(
  db: Db,
  viewer: Viewer | null,
  bindingId: string,
): Promise<ReleaseBindingResult> {
  const rows = await withRetry(
    () => db.$queryRaw<{ outcome: "released" | "already_released" | "not_found" }[]>`
      SELECT binding_release(${bindingId}::uuid, ${sightParameter(viewer)}::uuid) AS outcome`,
  );
  const sight = sightOf(viewer);
  switch (rows[0]?.outcome ?? "not_found") {
    case "not_found":
      return bindingNotFound();
    case "released":
      return { kind: "BindingReleased", binding: await bindingOf(db, sight, "id", bindingId) };
    case "already_released":
      return alreadyReleased(await bindingOf(db, sight, "id", bindingId));
  }
}

// These read after the transaction that decided; the ids were seen by it, so the rows are there.
async function reservationSettled(db: Db, sight: Sight, id: string): Promise<ReservationRow> {
  const row = (await reservationsByIds(db, sight, [id]))[0];
  if (row === undefined) throw new Error("a reservation that was decided on is gone");
  return row;
}

async function bindingOf(db: Db, sight: Sight, by: "id" | "reservationId", id: string): Promise<BindingRow> {
  const row = (await bindingsBy(db, sight, by, [id]))[0];
  if (row === undefined) throw new Error("a binding that was decided on is gone");
  return row;
}

function ended(outcome: "expired" | "cancelled", reservation: ReservationRow) {
  return outcome === "expired" ? reservationExpired(reservation) : reservationCancelled(reservation);
}
