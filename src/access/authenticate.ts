import { createRemoteJWKSet, decodeProtectedHeader, errors, type JWTPayload, jwtVerify } from "jose";
import { z } from "zod";
import type { Config } from "../config.ts";
import { type Db, statementRun } from "../database/client.ts";
import type { Log } from "../logging.ts";
import { organizationBySlug } from "./organizations.ts";
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
    if (jwt === null || keys === null || !isJwt(credential)) return tokenFind(db, credential);
    const payload = await verify(credential, keys, jwt).catch((error: unknown) => {
      // The keys could not be had: that is no verdict on the token.
      if (!(error instanceof errors.JOSEError) || error instanceof errors.JWKSTimeout) throw error;
      log.warn({ reason: error.message }, "a JWT was refused");
      return null;
    });
    const parsed = claims.safeParse(payload);
    return parsed.success ? jwtViewer(db, parsed.data) : null;
  };
}

/** Whether a credential is a JWT by its header; an opaque token may have dots as well. */
function isJwt(credential: string): boolean {
  try {
    return typeof decodeProtectedHeader(credential).alg === "string";
  } catch {
    return false;
  }
}

async function verify(
  credential: string,
  keys: ReturnType<typeof createRemoteJWKSet>,
  jwt: NonNullable<Config["jwt"]>,
): Promise<JWTPayload> {
  const { payload } = await jwtVerify(credential, keys, {
    requiredClaims: ["exp"],
    algorithms: ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"],
    ...(jwt.issuer === null ? {} : { issuer: jwt.issuer }),
    ...(jwt.audience === null ? {} : { audience: jwt.audience }),
  });
  return payload;
}

async function tokenFind(db: Db, secret: string): Promise<Viewer | null> {
  const rows = await statementRun<{ role: TokenRole; organizationId: string | null; tokenName: string }>(
    db,
    "token_find",
    `SELECT role, organization_id AS "organizationId", name AS "tokenName" FROM api_token
     WHERE secret_sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp())`,
    [secretHash(secret)],
  );
  return rows[0] ?? null;
}

async function jwtViewer(db: Db, payload: z.output<typeof claims>): Promise<Viewer | null> {
  const slug = payload.holdfast_organization;
  const role = payload.holdfast_role;
  // As for opaque tokens: a tenant belongs to an organization, operators and storefronts to none.
  if (role === "tenant" ? slug === undefined : role !== "meter" && slug !== undefined) return null;
  const organization = slug === undefined ? null : await organizationBySlug(db, slug);
  if (slug !== undefined && organization === null) return null;
  return { role, organizationId: organization?.id ?? null, tokenName: payload.sub ?? "jwt" };
}
