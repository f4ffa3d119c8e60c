import { labelOf, type RackFace, type RackReservationRow, type RackRow } from "./rows.ts";

/** One unit of one face. */
export interface RackUnit {
  /** As the rack is labelled. */
  readonly unit: number;
  readonly state: "free" | "reserved" | "installed";
  /** What has it; null when free. */
  readonly occupant: RackReservationRow | null;
}

/**
 * A face of a rack from the top down, as one stands before it. Never fails: a row that the rack has no
 * units for shows as far as there are any.
 * @param occupants the rows that take units of the rack now, on any face.
 */
export function elevationOf(
  rack: RackRow,
  occupants: readonly RackReservationRow[],
  face: RackFace,
): RackUnit[] {
  const onFace = occupants.filter((row) => row.depth === "full" || row.face === face);
  return Array.from({ length: rack.heightUnits }, (_, index) => {
    const unit = rack.heightUnits - index;
    const occupant =
      onFace.find((row) => row.bottomUnit <= unit && unit < row.bottomUnit + row.heightUnits) ?? null;
    return {
      unit: labelOf(rack, unit),
      state: occupant === null ? "free" : occupant.state === "promoted" ? "installed" : "reserved",
      occupant,
    };
  });
}
