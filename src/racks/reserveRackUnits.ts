// Holds rack units for somebody with a cart. One call of a SQL function (migration rack_operations), and
// therefore one transaction. Twice at once: under the rack's lock the second finds what the first has left.
import { moduleDisabled } from "../access/results.ts";
import type { Db } from "../database/client.ts";
import { InvalidInput, TryAgain } from "../refusal.ts";
import { idempotencyKeyReused } from "../reservations/results.ts";
import { rackReservationDecided } from "./decided.ts";
import { rackReserveCall } from "./queries/operations.ts";
import { rackReservationByKey } from "./queries/racks.ts";
import {
  noSpaceInRack,
  type ReserveRackUnitsResult,
  rackNotFound,
  rackReservationExpired,
  rackReservationSettled,
  unitsAlreadyReserved,
  unitsOccupied,
} from "./results.ts";
import type { RackDepth, RackFace } from "./rows.ts";

/** What is asked of a rack. */
export interface UnitsWish {
  readonly rackId: string;
  readonly heightUnits: number;
  /** Label of the physically lowest unit; null: the tightest gap that fits, the lowest of equals. */
  readonly bottomUnit: number | null;
  /** null: front. */
  readonly face: RackFace | null;
  /** null: full. */
  readonly depth: RackDepth | null;
  /** null: none. */
  readonly powerWatts: number | null;
  readonly purpose: string;
  readonly idempotencyKey: string;
}

/**
 * @param holdSeconds how long the units are kept.
 * @throws InvalidInput for units that the rack does not have; TryAgain when the rack stays locked.
 */
export async function rackUnitsReserve(
  db: Db,
  holdSeconds: number,
  wish: UnitsWish,
): Promise<ReserveRackUnitsResult> {
  const face = wish.face ?? "front";
  const depth = wish.depth ?? "full";
  const powerWatts = wish.powerWatts ?? 0;
  const { idempotencyKey, rackId, ...rest } = wish;
  const request = { ...rest, rackId, face, depth, powerWatts };
  const answer = await rackReserveCall(db, { ...wish, face, depth, powerWatts, request, holdSeconds });
  switch (answer.outcome) {
    case "reserved":
      return {
        kind: "RackUnitsReserved",
        rackReservation: await rackReservationDecided(db, answer.reservationId),
      };
    case "key_found": {
      const found = await rackReservationByKey(db, idempotencyKey, request);
      if (found === null) throw new Error("a key that was found is gone");
      const { rackReservation, sameArguments } = found;
      if (!sameArguments) return idempotencyKeyReused(idempotencyKey);
      if (rackReservation.state === "expired") return rackReservationExpired(rackReservation);
      if (rackReservation.state === "cancelled") return rackReservationSettled(rackReservation);
      return unitsAlreadyReserved(rackReservation);
    }
    case "not_found":
      return rackNotFound();
    case "module_disabled":
      return moduleDisabled("datacenter");
    case "outside":
      throw new InvalidInput("input.bottomUnit", "with this height, names units that the rack does not have");
    case "occupied":
      return unitsOccupied(answer.units ?? []);
    case "no_space":
      return noSpaceInRack(rackId, answer.limits ?? []);
    case "unsettled":
      throw new TryAgain(new Error("rack_reserve met three different neighbours"));
  }
}
