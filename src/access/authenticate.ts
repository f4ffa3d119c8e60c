import { createRemoteJWKSet, errors, jwtVerify } from "jose";
import { z } from "zod";
import type { Config } from "../config.ts";
import type { Db } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { secretHash } from "./tokens.ts";
import { TOKEN_ROLES, type TokenRole, type Viewer } from "./viewer.ts";

/** Finds who sent an Authorization header; null for a missing or worthless one. */
export type Authenticate = (authorization: string | null) => Promise<Viewer | null>;

const claims = z.object({
  sub: z.string().optional(),
  holdfast_role: z.enum(TOKEN_ROLES),
  /** Slug of the organization; required for tenants. */
  holdfast_organization: z
    .string()
    .regex(/^[a-z0-9-]{1,63}$/)
    .optional(),
});

/**
 * Opaque tokens are looked up in the database at every request, so that a revocation holds at once
 * and in every process. With a JWKS configured, a token of three dotted parts is verified as a JWT:
 * signature, `exp`, issuer and audience, then the claims `holdfast_role` and `holdfast_organization`.
 */
export function authenticateWith(db: Db, jwt: Config["jwt"], log: Log): Authenticate {
  const keys = jwt === null ? null : createRemoteJWKSet(new URL(jwt.jwksUrl));
  return async (authorization) => {
    const credential = /^Bearer +(\S{1,8000}) *$/i.exec(authorization ?? "")?.[1];
    if (credential === undefined) return null;
    if (jwt === null || keys === null || credential.split(".").length !== 3) return tokenFind(db, credential);
    try {
      const verified = await jwtVerify(credential, keys, {
        requiredClaims: ["exp"],
        algorithms: ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"],
        ...(jwt.issuer === null ? {} : { issuer: jwt.issuer }),
        ...(jwt.audience === null ? {} : { audience: jwt.audience }),
      });
      return await jwtViewer(db, claims.parse(verified.payload));
    } catch (error) {
      if (!(error instanceof errors.JOSEError || error instanceof z.ZodError || error instanceof TypeError))
        throw error;
      log.warn({ reason: error.message }, "a JWT was refused");
      return null;
    }
  };
}

async function tokenFind(db: Db, secret: string): Promise<Viewer | null> {
  const rows = await db.$queryRaw<{ role: TokenRole; organizationId: string | null; tokenName: string }[]>`
    /* token_find */
    SELECT role, organization_id AS "organizationId", name AS "tokenName" FROM api_token
    WHERE secret_sha256 = ${secretHash(secret)} AND revoked_at IS NULL
      AND (expires_at IS NULL OR expires_at > statement_timestamp())`;
  return rows[0] ?? null;
}

async function jwtViewer(db: Db, payload: z.output<typeof claims>): Promise<Viewer | null> {
  const slug = payload.holdfast_organization;
  const organization =
    slug === undefined ? null : await db.organization.findUnique({ where: { slug }, select: { id: true } });
  if (
    (slug !== undefined && organization === null) ||
    (payload.holdfast_role === "tenant" && organization === null)
  ) {
    return null;
  }
  return {
    role: payload.holdfast_role,
    organizationId: organization?.id ?? null,
    tokenName: payload.sub ?? "jwt",
  };
}
