/** A reservation's states, as the database calls them. */
export const RESERVATION_STATES = ["held", "converted", "expired", "cancelled"] as const;
export type ReservationState = (typeof RESERVATION_STATES)[number];

/**
 * What each state means for the machine and what may follow. `holdsMachine` is what the index
 * reservation_one_hold_per_machine says in its WHERE, and `next` what the trigger reservation_guard
 * lets through; tests compare both with the database. `expired` is a time-out, `cancelled` a decision.
 */
export const RESERVATION_STATE_TABLE = {
  held: { holdsMachine: true, next: ["converted", "expired", "cancelled"] },
  converted: { holdsMachine: false, next: [] },
  expired: { holdsMachine: false, next: [] },
  cancelled: { holdsMachine: false, next: [] },
} as const satisfies Record<ReservationState, { holdsMachine: boolean; next: readonly ReservationState[] }>;
