import type { ModuleDisabled } from "../access/results.ts";
import type { RejectionCount } from "../inventory/rejections.ts";
import type { NextAction, Refusal } from "../refusal.ts";
import type { BindingRow, ReservationRow } from "./rows.ts";

export interface MachineReserved {
  readonly kind: "MachineReserved";
  readonly reservation: ReservationRow;
}
export interface NothingAvailable extends Refusal<"NothingAvailable"> {
  readonly considered: number;
  readonly rejections: readonly RejectionCount[];
}
export interface SomeoneWasFaster extends Refusal<"SomeoneWasFaster"> {
  readonly eligible: number;
  readonly skipped: number;
  readonly lostRaces: number;
}
export interface AlreadyReserved extends Refusal<"AlreadyReserved"> {
  readonly reservation: ReservationRow;
}
export interface ReservationExpired extends Refusal<"ReservationExpired"> {
  readonly reservation: ReservationRow;
}
export interface ReservationCancelled extends Refusal<"ReservationCancelled"> {
  readonly reservation: ReservationRow;
}
export interface IdempotencyKeyReused extends Refusal<"IdempotencyKeyReused"> {
  readonly idempotencyKey: string;
}
export interface HoldLimitReached extends Refusal<"HoldLimitReached"> {
  readonly limit: number;
  readonly held: readonly ReservationRow[];
}
export interface CoolingDown extends Refusal<"CoolingDown"> {
  readonly retryAt: Date;
}
export type ReserveMachineResult =
  | MachineReserved
  | NothingAvailable
  | SomeoneWasFaster
  | AlreadyReserved
  | ReservationExpired
  | ReservationCancelled
  | IdempotencyKeyReused
  | HoldLimitReached
  | CoolingDown
  | ModuleDisabled;

export interface ReservationConverted {
  readonly kind: "ReservationConverted";
  readonly reservation: ReservationRow;
  readonly binding: BindingRow;
}
export interface AlreadyConverted extends Refusal<"AlreadyConverted"> {
  readonly binding: BindingRow;
}
export type ReservationNotFound = Refusal<"ReservationNotFound">;
export type ConvertReservationResult =
  | ReservationConverted
  | ReservationExpired
  | ReservationCancelled
  | AlreadyConverted
  | ReservationNotFound
  | ModuleDisabled;

export interface ReservationReleased {
  readonly kind: "ReservationReleased";
  readonly reservation: ReservationRow;
}
export type CancelReservationResult =
  | ReservationReleased
  | ReservationExpired
  | ReservationCancelled
  | AlreadyConverted
  | ReservationNotFound;

export interface ReservationExtended {
  readonly kind: "ReservationExtended";
  readonly reservation: ReservationRow;
}
export interface ExtensionLimitReached extends Refusal<"ExtensionLimitReached"> {
  readonly reservation: ReservationRow;
}
export type ExtendReservationResult =
  | ReservationExtended
  | ExtensionLimitReached
  | ReservationExpired
  | ReservationCancelled
  | AlreadyConverted
  | ReservationNotFound
  | ModuleDisabled;

export interface BindingReleased {
  readonly kind: "BindingReleased";
  readonly binding: BindingRow;
}
export interface AlreadyReleased extends Refusal<"AlreadyReleased"> {
  readonly binding: BindingRow;
}
export type BindingNotFound = Refusal<"BindingNotFound">;
export type ReleaseBindingResult = BindingReleased | AlreadyReleased | BindingNotFound;

/** How long a client waits before it repeats an order that somebody else was faster than. */
const RETRY_MS = 250;

function refusal<Kind extends string>(
  kind: Kind,
  nextAction: NextAction,
  message: string,
  retryAfterMs: number | null = null,
): Refusal<Kind> {
  return { kind, message, nextAction, retryAfterMs };
}

const REASON_WORDS: Record<RejectionCount["reason"], string> = {
  wrong_site: "at another site",
  wrong_manufacturer: "of another maker",
  wrong_model: "of another model",
  too_few_cores: "with too few cores",
  too_little_memory: "with too little memory",
  too_little_storage: "with too little storage",
  missing_label: "without a label that was asked for",
  not_installed: "not installed in a rack",
  not_ready: "not ready for sale",
  held: "held for other orders",
  bound: "serving customers",
};

export function nothingAvailable(
  considered: number,
  rejections: readonly RejectionCount[],
): NothingAvailable {
  const reasons = rejections.map(({ reason, machines }) => `${machines} ${REASON_WORDS[reason]}`).join(", ");
  const list = considered === 0 ? "there are no machines at all" : `of ${considered} machines: ${reasons}`;
  return {
    ...refusal(
      "NothingAvailable",
      "BUY_MORE",
      `No machine can be had for this order (${list}; a machine can have several reasons). Nothing was reserved. Repeating the order does not help: change what it asks for, or add hardware.`,
    ),
    considered,
    rejections,
  };
}

export function someoneWasFaster(eligible: number, skipped: number, lostRaces: number): SomeoneWasFaster {
  return {
    ...refusal(
      "SomeoneWasFaster",
      "RETRY",
      "Other orders were taking the machines that fit at this very moment. Nothing was reserved, and nothing is wrong: send the same request again, with the same idempotency key.",
      RETRY_MS,
    ),
    eligible,
    skipped,
    lostRaces,
  };
}

export function alreadyReserved(reservation: ReservationRow): AlreadyReserved {
  const what =
    reservation.state === "converted"
      ? "and it was converted already"
      : `and holds machine ${reservation.choice.assetTag} until ${reservation.expiresAt.toISOString()}`;
  return {
    ...refusal(
      "AlreadyReserved",
      "USE_EXISTING",
      `This idempotency key already has a reservation, ${what}. Use that one; no second machine was taken. For another machine, use a new key.`,
    ),
    reservation,
  };
}

export function reservationExpired(reservation: ReservationRow): ReservationExpired {
  return {
    ...refusal(
      "ReservationExpired",
      "START_OVER",
      `The hold ran out at ${reservation.expiresAt.toISOString()} and its machine may belong to somebody else now. Do not charge for it; reserve again with a new idempotency key.`,
    ),
    reservation,
  };
}

export function reservationCancelled(reservation: ReservationRow): ReservationCancelled {
  return {
    ...refusal(
      "ReservationCancelled",
      "START_OVER",
      `The reservation was cancelled${reservation.settledAt === null ? "" : ` at ${reservation.settledAt.toISOString()}`} and stays so. If a machine is still wanted, reserve again with a new idempotency key.`,
    ),
    reservation,
  };
}

export function idempotencyKeyReused(idempotencyKey: string): IdempotencyKeyReused {
  return {
    ...refusal(
      "IdempotencyKeyReused",
      "FIX_REQUEST",
      "This idempotency key was used before with another order reference or other requirements. Nothing was reserved. Use one key for one order: a new key for a new order, the same arguments for a repeat.",
    ),
    idempotencyKey,
  };
}

/** @param untilFirstEndsMs milliseconds until the first of `held` runs out; null when none is held any more. */
export function holdLimitReached(
  limit: number,
  held: readonly ReservationRow[],
  untilFirstEndsMs: number | null,
): HoldLimitReached {
  const base =
    limit === 0
      ? refusal(
          "HoldLimitReached",
          "CONTACT_OPERATOR",
          `This organization may hold ${limit} machines at one time. Ask an operator to raise the limit.`,
        )
      : refusal(
          "HoldLimitReached",
          "WAIT",
          `This organization holds ${held.length} machines, and may hold ${limit} at one time; nothing was reserved. Convert or cancel one of them, or wait until the first runs out; then send the same request again. An operator can raise the limit.`,
          untilFirstEndsMs ?? RETRY_MS,
        );
  return { ...base, limit, held };
}

export function coolingDown(retryAt: Date, retryAfterMs: number): CoolingDown {
  return {
    ...refusal(
      "CoolingDown",
      "WAIT",
      `This organization reserved a machine a moment ago. Wait until ${retryAt.toISOString()}, then send the same request again; asking earlier does not prolong the wait.`,
      retryAfterMs,
    ),
    retryAt,
  };
}

export function alreadyConverted(binding: BindingRow): AlreadyConverted {
  return {
    ...refusal(
      "AlreadyConverted",
      "USE_EXISTING",
      `This reservation became a binding at ${binding.boundAt.toISOString()}, for service ${binding.serviceReference}. Use that binding; to end the service, release it.`,
    ),
    binding,
  };
}

export function reservationNotFound(): ReservationNotFound {
  return refusal(
    "ReservationNotFound",
    "FIX_REQUEST",
    "There is no such reservation among those that this token may see. Check the id and the token.",
  );
}

export function extensionLimitReached(reservation: ReservationRow): ExtensionLimitReached {
  return {
    ...refusal(
      "ExtensionLimitReached",
      "USE_EXISTING",
      `This hold has been extended as far as it can be and ends at ${reservation.expiresAt.toISOString()}. Convert it before then.`,
    ),
    reservation,
  };
}

export function alreadyReleased(binding: BindingRow): AlreadyReleased {
  return {
    ...refusal(
      "AlreadyReleased",
      "USE_EXISTING",
      `This binding was released${binding.releasedAt === null ? "" : ` at ${binding.releasedAt.toISOString()}`}. There is nothing left to do; whoever has the machine now is not affected.`,
    ),
    binding,
  };
}

export function bindingNotFound(): BindingNotFound {
  return refusal(
    "BindingNotFound",
    "FIX_REQUEST",
    "There is no such binding among those that this token may see. Check the id and the token.",
  );
}
