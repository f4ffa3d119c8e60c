// Ends a service. One call of a SQL function (migration reservation_life_cycle), and therefore
// one transaction. Twice at once: one releases, the other is told.
import { sightOf, sightParameter, type Viewer } from "../access/viewer.ts";
import type { Db } from "../database/client.ts";
import { withRetry } from "../database/violation.ts";
import { alreadyReleased, bindingNotFound, type ReleaseBindingResult } from "./results.ts";
import { bindingOf } from "./settled.ts";

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
