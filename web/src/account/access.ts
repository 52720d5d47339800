/** Who may come in, as whom, and what is said at the door. */
import type { Refusal } from '../api/request'
import type { Me } from '../api/types'
import { plain } from '../ui/format'
import { explain, sentence } from '../ui/apiErrors'

/** What stands in the way of the fleet; null: nothing. `no-accounts` says how the first one is made. */
export type LoginGate = 'first-admin' | 'no-accounts' | 'log-in' | null

const LINK = /^#first-admin=([\w-]{1,128})$/
export const SHORTEST_PASSWORD = 10

/** The secret of a link for the first admin, from the part of the address that no server sees. */
export function secretIn(hash: string): string | null {
  return LINK.exec(hash)?.[1] ?? null
}

export function loginGate(me: Me | null, secret: string | null): LoginGate {
  if (me === null) return null
  if (secret !== null && !me.can_log_in) return 'first-admin'
  if (me.may_read) return null
  return me.needs_first_admin ? 'no-accounts' : 'log-in'
}

/** Somebody with a name of their own: not a stranger, and not whoever sits at a hub that asks nobody. */
export function isKnown(me: Me | null): me is Me {
  return me !== null && (me.kind === 'account' || me.kind === 'proxy')
}

/** Whether there is any use in offering to log in. */
export function canEnter(me: Me | null): boolean {
  return me?.kind === 'nobody' && (me.can_log_in || me.needs_first_admin)
}

/** Where the browser goes to log in with a provider, and comes back from to the place where it is now. */
export function providerAddress(name: string, place: { search: string; hash: string }): string {
  return `api/v1/login/oidc/${encodeURIComponent(name)}?next=${encodeURIComponent(place.search + place.hash)}`
}

/** A hub that has not said who asks decides when it is asked to change something. */
export function mayAdminister(me: Me | null): boolean {
  return me?.may_administer ?? true
}

/** Changes when somebody else uses the page, or the same person with other rights. */
export function identity(me: Me | null): string {
  return me === null ? '' : `${me.kind} ${me.role} ${me.name}`
}

export interface LoginRefusal {
  text: string
  /** Seconds until the next try is worth anything; 0: now. */
  wait: number
}

/** The wait is told by a clock of its own, so it is taken out of the hub's words. */
export function loginRefusal(refusal: Refusal): LoginRefusal {
  const wait = refusal.retryAfter ?? 0
  if (refusal.status === null) return { ...explain(refusal), wait }
  const words = plain(refusal.message).replace(/ Try again in [^.]*\.$/, '') || `The hub refused the request (HTTP ${refusal.status})`
  return { text: sentence(words.charAt(0).toUpperCase() + words.slice(1)), wait }
}

export interface PasswordMistake {
  field: 'password' | 'again'
  text: string
}

/** What can be seen of a new password without asking; everything else the hub knows better. */
export function passwordMistake(password: string, again: string): PasswordMistake | null {
  if ([...password].length < SHORTEST_PASSWORD) return { field: 'password', text: `Use at least ${SHORTEST_PASSWORD} characters. Four random words work well.` }
  return password === again ? null : { field: 'again', text: 'The passwords do not match.' }
}

const ROLES: Record<string, string> = { viewer: 'can view', user: 'can view, reserve and manage their own data', admin: 'full access' }

export function roleText(role: string): string {
  return ROLES[role] ?? ''
}
