// What becomes of installed machines: they are taken out, or moved. Each is one call of a SQL function
// (migration rack_operations), and therefore one transaction. Twice at once: one after the other, each
// judged by what it finds.
import { moduleDisabled } from "../access/results.ts";
import type { Db } from "../database/client.ts";
import { InvalidInput } from "../refusal.ts";
import { rackReservationDecided, rackReservationsDecided } from "./decided.ts";
import { type PlacementMove, placementRemoveCall, placementsMoveCall } from "./queries/operations.ts";
import {
  type MovePlacementsResult,
  machineDoesNotFit,
  placementAlreadyRemoved,
  placementNotFound,
  powerBudgetExceeded,
  type RemovePlacementResult,
  unitsOccupied,
} from "./results.ts";

/** Takes a machine out of its rack; the row stays. @throws TryAgain when the machine or the rack stays locked. */
export async function placementRemove(db: Db, placementId: string): Promise<RemovePlacementResult> {
  const outcome = await placementRemoveCall(db, placementId);
  if (outcome === "not_found") return placementNotFound();
  const placement = await rackReservationDecided(db, placementId);
  return outcome === "removed" ? { kind: "PlacementRemoved", placement } : placementAlreadyRemoved(placement);
}

/**
 * Moves placements, all or none, judged as a whole: what they leave is free for each other.
 * @throws InvalidInput for units that a rack does not have; TryAgain when something stays locked.
 */
export async function placementsMove(db: Db, moves: readonly PlacementMove[]): Promise<MovePlacementsResult> {
  const answer = await placementsMoveCall(db, moves);
  switch (answer.outcome) {
    case "moved":
      return {
        kind: "PlacementsMoved",
        placements: await rackReservationsDecided(
          db,
          moves.map((move) => move.placementId),
        ),
      };
    case "not_found":
      return placementNotFound(answer.moves ?? []);
    case "module_disabled":
      return moduleDisabled("datacenter");
    case "outside":
      throw new InvalidInput(
        `input.moves.${answer.moves?.[0] ?? 0}.bottomUnit`,
        "names units that the rack does not have",
      );
    case "occupied":
      return unitsOccupied(answer.units ?? []);
    case "misfit":
      return machineDoesNotFit(["site"]);
    case "power":
      return powerBudgetExceeded();
  }
}
