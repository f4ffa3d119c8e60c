import { slugRead } from "../access/slug.ts";

/**
 * Names that an app cannot have: hosts that mail, browsers and this product's own services expect, and
 * names under which a stranger's page would be taken for the hosting company's.
 */
export const RESERVED_SLUGS: readonly string[] = `
  www www1 www2 ww web root localhost localdomain local internal intranet api graphql rest rpc oauth
  sso auth login logout signin signup account accounts admin administrator administration sysadmin
  operator console panel dashboard control cpanel plesk webmin holdfast orchestrator builds deploy
  billing payment payments pay checkout invoice invoices support help helpdesk status security abuse
  legal privacy terms trust official staff team mail email webmail smtp imap pop pop3 mx mx1 mx2
  autoconfig autodiscover postmaster hostmaster webmaster noreply no-reply mailer-daemon wpad isatap
  ftp sftp ssh vpn dns ns ns1 ns2 ns3 ns4 ntp ldap proxy cdn static assets media img images files
  download downloads git registry
`
  .trim()
  .split(/\s+/);

const RESERVED = new Set(RESERVED_SLUGS);
const RESERVED_WITHOUT_HYPHENS = new Set(RESERVED_SLUGS.map((name) => name.replaceAll("-", "")));

/** The slug of an app in its canonical form, or what is wrong with it. */
export function appSlugRead(given: string): ReturnType<typeof slugRead> {
  const reading = slugRead(given);
  if ("problem" in reading) return reading;
  if (RESERVED.has(reading.slug)) return { problem: "It is kept for the hosting company's own services." };
  if (disguises(reading.slug).some((name) => RESERVED_WITHOUT_HYPHENS.has(name))) {
    return { problem: "It looks like a name that is kept for the hosting company's own services." };
  }
  return reading;
}

const LETTERS: Readonly<Record<string, string>> = { 0: "o", 3: "e", 4: "a", 5: "s", 7: "t", 8: "b" };

/**
 * What a slug is read as at a glance: without its hyphens, digits for the letters that they pass for, rn
 * for m, vv for w.
 */
function disguises(slug: string): string[] {
  return ["i", "l"].map((one) =>
    slug
      .replaceAll("-", "")
      // Several digits at the end are a number ("shop-42"), and no disguise; a lone one may be ("emai1").
      .replace(/[0134578](?=.*[a-z])|(?<=[a-z])[0134578]$/g, (digit) =>
        digit === "1" ? one : (LETTERS[digit] ?? digit),
      )
      .replaceAll("rn", "m")
      .replaceAll("vv", "w"),
  );
}
