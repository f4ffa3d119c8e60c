// Reads of racks and of what has their units now. Locks nothing.
import type { Db } from "../../database/client.ts";
import {
  RACK_COLUMNS,
  RACK_RESERVATION_COLUMNS,
  type RackDepth,
  type RackFace,
  type RackReservationRow,
  type RackRow,
} from "../rows.ts";

/** Racks by id. */
export async function racksByIds(db: Db, ids: readonly string[]): Promise<RackRow[]> {
  return db.$queryRaw<RackRow[]>`SELECT ${RACK_COLUMNS} FROM rack r WHERE r.id = ANY(${[...ids]}::uuid[])`;
}

/** The racks of a site, or of all of them, by site and name. */
export async function racksList(db: Db, siteCode: string | null): Promise<RackRow[]> {
  return db.$queryRaw<RackRow[]>`
    SELECT ${RACK_COLUMNS} FROM rack r JOIN site s ON s.id = r.site_id
    WHERE (${siteCode}::text IS NULL OR s.code = ${siteCode}::text)
    ORDER BY s.code, r.name`;
}

/** Reservations by id, whatever has become of them. */
export async function rackReservationsByIds(db: Db, ids: readonly string[]): Promise<RackReservationRow[]> {
  return db.$queryRaw<RackReservationRow[]>`
    SELECT ${RACK_RESERVATION_COLUMNS} FROM rack_reservation_now o JOIN rack r ON r.id = o.rack_id
    WHERE o.id = ANY(${[...ids]}::uuid[])`;
}

/** Where these machines stand now; those that stand nowhere are absent. */
export async function placementsOfMachines(
  db: Db,
  machineIds: readonly string[],
): Promise<(RackReservationRow & { machineId: string })[]> {
  return db.$queryRaw<(RackReservationRow & { machineId: string })[]>`
    SELECT ${RACK_RESERVATION_COLUMNS} FROM rack_reservation_now o JOIN rack r ON r.id = o.rack_id
    WHERE o.machine_id = ANY(${[...machineIds]}::uuid[]) AND o.state = 'promoted' AND o.removed_at IS NULL`;
}

/** What takes units of these racks now, from the bottom. */
export async function rackOccupants(db: Db, rackIds: readonly string[]): Promise<RackReservationRow[]> {
  return db.$queryRaw<RackReservationRow[]>`
    /* rack_occupants */
    SELECT ${RACK_RESERVATION_COLUMNS} FROM rack_reservation o JOIN rack r ON r.id = o.rack_id
    WHERE o.rack_id = ANY(${[...rackIds]}::uuid[]) AND o.occupies
      AND (o.state = 'promoted' OR o.expires_at > statement_timestamp())
    ORDER BY o.rack_id, o.bottom_unit, o.id`;
}

/** A free stretch of a rack. */
export interface RackGap {
  readonly rackId: string;
  /** Physically, from 1 at the bottom. */
  readonly bottomUnit: number;
  readonly size: number;
}

/** The free stretches of these racks for a place of this face and depth. */
export async function rackGaps(
  db: Db,
  rackIds: readonly string[],
  face: RackFace,
  depth: RackDepth,
): Promise<RackGap[]> {
  return db.$queryRaw<RackGap[]>`
    /* rack_gaps_of */
    SELECT r.id AS "rackId", g.bottom_unit AS "bottomUnit", g.size
    FROM unnest(${[...rackIds]}::uuid[]) AS r (id), LATERAL rack_gaps(r.id, rack_faces(${face}, ${depth})) g`;
}

/** A rack that would take a placement now, and where. */
export interface RackSpace {
  readonly rack: RackRow;
  /** Label of the unit where it would begin. */
  readonly bottomLabel: number;
  /** Size of the gap it would be put into. */
  readonly gapUnits: number;
  /** What may still be drawn there; null: no budget. */
  readonly freeWatts: number | null;
}

/**
 * The racks of a site that would take a placement, best first: the tightest gap, then the least power
 * left over, then the name.
 */
export async function rackSpaces(
  db: Db,
  siteCode: string,
  wish: { heightUnits: number; face: RackFace; depth: RackDepth; powerWatts: number },
): Promise<RackSpace[]> {
  const rows = await db.$queryRaw<
    (RackRow & { bottomLabel: number; gapUnits: number; freeWatts: number | null })[]
  >`
    SELECT ${RACK_COLUMNS}, rack_label(r, g.bottom_unit) AS "bottomLabel", g.size AS "gapUnits",
           (r.power_budget_watts - p.drawn)::integer AS "freeWatts"
    FROM site s JOIN rack r ON r.site_id = s.id
    CROSS JOIN LATERAL (
      SELECT coalesce(sum(o.power_watts), 0) AS drawn FROM rack_reservation o
      WHERE o.rack_id = r.id AND o.occupies AND (o.state = 'promoted' OR o.expires_at > statement_timestamp())) p
    CROSS JOIN LATERAL (
      SELECT bottom_unit, size FROM rack_gaps(r.id, rack_faces(${wish.face}, ${wish.depth}))
      WHERE size >= ${wish.heightUnits}::integer ORDER BY size, bottom_unit LIMIT 1) g
    WHERE s.code = ${siteCode}
      AND (r.power_budget_watts IS NULL OR r.power_budget_watts - p.drawn >= ${wish.powerWatts}::integer)
    ORDER BY g.size, r.power_budget_watts - p.drawn NULLS LAST, r.name`;
  return rows.map(({ bottomLabel, gapUnits, freeWatts, ...rack }) => ({
    rack,
    bottomLabel,
    gapUnits,
    freeWatts,
  }));
}

/** What a used key stands for: the reservation, and whether it was made with these arguments. */
export async function rackReservationByKey(
  db: Db,
  idempotencyKey: string,
  request: Record<string, unknown>,
): Promise<{ rackReservation: RackReservationRow; sameArguments: boolean } | null> {
  const rows = await db.$queryRaw<(RackReservationRow & { sameArguments: boolean })[]>`
    SELECT ${RACK_RESERVATION_COLUMNS}, o.request = ${JSON.stringify(request)}::jsonb AS "sameArguments"
    FROM rack_reservation_now o JOIN rack r ON r.id = o.rack_id
    WHERE o.idempotency_key = ${idempotencyKey}`;
  if (rows[0] === undefined) return null;
  const { sameArguments, ...rackReservation } = rows[0];
  return { rackReservation, sameArguments };
}
