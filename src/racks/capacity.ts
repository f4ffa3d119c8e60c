import type { RackReservationRow, RackRow } from "./rows.ts";

/** What keeps one more placement out of a rack, as the database calls it. */
export const CAPACITY_LIMITS = ["no_free_units", "not_contiguous", "power_budget"] as const;
export type CapacityLimit = (typeof CAPACITY_LIMITS)[number];

/** Placements that would succeed now, one after the other, and what keeps out the next one. */
export interface SellableCapacity {
  readonly placements: number;
  readonly limitedBy: readonly CapacityLimit[];
}

/**
 * How many placements of one kind a rack takes, each put into the tightest gap that fits: a gap of ten
 * units takes three of three units, however they are put in.
 * @param gaps sizes of the free stretches on the faces that the placement takes.
 * @param freeWatts null: no budget.
 */
export function sellableIn(
  gaps: readonly number[],
  freeWatts: number | null,
  heightUnits: number,
  powerWatts: number,
): SellableCapacity {
  const bySpace = gaps.reduce((sum, size) => sum + Math.floor(size / heightUnits), 0);
  const byPower =
    freeWatts === null || powerWatts === 0
      ? Number.POSITIVE_INFINITY
      : Math.max(Math.floor(freeWatts / powerWatts), 0);
  const placements = Math.min(bySpace, byPower);
  const limitedBy: CapacityLimit[] = [];
  if (bySpace <= byPower) {
    const left = gaps.reduce((sum, size) => sum + size, 0) - bySpace * heightUnits;
    limitedBy.push(left < heightUnits ? "no_free_units" : "not_contiguous");
  }
  if (byPower <= bySpace) limitedBy.push("power_budget");
  return { placements, limitedBy };
}

/** What may still be drawn in a rack; null: no budget. Never below zero. */
export function freeWatts(rack: RackRow, occupants: readonly RackReservationRow[]): number | null {
  if (rack.powerBudgetWatts === null) return null;
  const drawn = occupants.reduce((sum, row) => sum + row.powerWatts, 0);
  return Math.max(rack.powerBudgetWatts - drawn, 0);
}

/** How many units have one of these rows on at least one face. */
export function unitsOf(rows: readonly RackReservationRow[]): number {
  const units = new Set<number>();
  for (const row of rows) {
    for (let unit = row.bottomUnit; unit < row.bottomUnit + row.heightUnits; unit++) units.add(unit);
  }
  return units.size;
}
