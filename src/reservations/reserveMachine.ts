// Reserve a machine for an order.
// Twice at once: with one key, one reserves and the others are told of that reservation; with two
// keys on one machine, one wins and the other is told that somebody was faster.
import { moduleDisabled } from "../access/results.ts";
import { organizationUnknown } from "../access/viewer.ts";
import type { Config } from "../config.ts";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { machinesJudgeCounts } from "../inventory/judgeMachines.ts";
import { type MachineRequirements, requirementsCanonical } from "../inventory/requirements.ts";
import { TryAgain } from "../refusal.ts";
import { type KeyRow, reservationByKey, reservationsHeldBy } from "./queries/reservations.ts";
import { reserveMachineCall } from "./queries/reserveMachine.ts";
import {
  alreadyReserved,
  coolingDown,
  holdLimitReached,
  idempotencyKeyReused,
  nothingAvailable,
  type ReserveMachineResult,
  reservationCancelled,
  reservationExpired,
  someoneWasFaster,
} from "./results.ts";

/** An order for one machine. */
export interface ReserveMachineRequest {
  readonly organizationId: string;
  readonly orderReference: string;
  readonly idempotencyKey: string;
  readonly requirements: MachineRequirements;
}

/** What the configuration says about holds. */
export type HoldSettings = Pick<Config, "holdSeconds" | "holdLimit" | "coolDownSeconds">;

/**
 * Reserves one machine, or says why not (design §2).
 * @throws InvalidInput for an unknown organization.
 */
export async function machineReserve(
  db: Db,
  settings: HoldSettings,
  request: ReserveMachineRequest,
): Promise<ReserveMachineResult> {
  const requirements = requirementsCanonical(request.requirements);
  const askForKey = () =>
    reservationByKey(
      db,
      request.organizationId,
      request.idempotencyKey,
      request.orderReference,
      requirements,
    );

  let answer: Awaited<ReturnType<typeof reserveMachineCall>>;
  try {
    answer = await withRetry(() => reserveMachineCall(db, { ...settings, ...request, requirements }));
  } catch (error) {
    // Another order of this organization kept its row for longer than a request waits: contention.
    if (!(error instanceof TryAgain)) throw error;
    answer = { outcome: "nothing_won", skipped: 0, lostRaces: 0, cutOff: true };
  }

  switch (answer.outcome) {
    case "reserved":
      return { kind: "MachineReserved", reservation: answer.reservation };
    case "unknown_organization":
      throw organizationUnknown("input.organizationId");
    case "module_disabled":
      return moduleDisabled("datacenter");
    case "cooling_down":
      return coolingDown(answer.retryAt, answer.retryAfterMs);
    case "hold_limit":
      return holdLimit(db, request.organizationId, answer.limit);
    case "key_found": {
      const row = await askForKey();
      if (row === null) throw new Error("a key that was found is gone");
      return replay(row);
    }
    case "nothing_won": {
      const counts = await machinesJudgeCounts(db, request.requirements);
      // Last of all: a neighbour with this key that has committed by now is seen.
      const row = await askForKey();
      if (row !== null) return replay(row);
      return counts.eligible > 0 || answer.cutOff
        ? someoneWasFaster(counts.eligible, answer.skipped, answer.lostRaces)
        : nothingAvailable(counts.considered, counts.rejections);
    }
  }
}

function replay({ reservation, sameArguments }: KeyRow): ReserveMachineResult {
  if (!sameArguments) return idempotencyKeyReused(reservation.idempotencyKey);
  switch (reservation.state) {
    case "held":
    case "converted":
      return alreadyReserved(reservation);
    case "expired":
      return reservationExpired(reservation);
    case "cancelled":
      return reservationCancelled(reservation);
  }
}

async function holdLimit(db: Db, organizationId: string, limit: number): Promise<ReserveMachineResult> {
  const held = await reservationsHeldBy(db, organizationId);
  const rows = await db.$queryRaw<{ ms: number | null }[]>`
    SELECT ceil(extract(epoch FROM min(expires_at) - statement_timestamp()) * 1000)::float8 AS ms
    FROM reservation_now WHERE organization_id = ${organizationId}::uuid AND state = 'held'`;
  return holdLimitReached(limit, held, rows[0]?.ms ?? null);
}
