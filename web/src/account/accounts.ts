/** Accounts, tokens and the audit log as lines to be read. */
import type { Account, AccountRole, AuditEntry, Me, Token, TokenRole } from '../api/types'
import { moment, plain } from '../ui/format'

export const ACCOUNT_ROLES: readonly AccountRole[] = ['viewer', 'user', 'admin']

export function accountLine(account: Account, now: number): string {
  const login = account.last_login_at === null ? 'never logged in' : `last login ${moment(account.last_login_at, now)}`
  return [account.role, login, ...(account.has_password ? [] : ['no password here (signs in through a provider or proxy)']), ...(account.is_disabled ? ['disabled'] : [])].join(' · ')
}

export interface TokenLine {
  id: number
  name: string
  what: string
  when: string
  /** Why it is no longer valid; empty while it is. */
  end: string
}

export function tokenLine(token: Token, now: number): TokenLine {
  const what = [token.role, ...(token.role === 'agent' ? [token.hosts === null ? 'any host' : `hosts ${token.hosts}`] : []), ...(token.account === null ? [] : [`of ${token.account}`])]
  const use = token.last_used_at === null ? 'never used' : `last used ${moment(token.last_used_at, now)}`
  return {
    id: token.id,
    name: plain(token.name),
    what: plain(what.join(' · ')),
    when: [plain(`created ${moment(token.created_at, now)}${token.created_by ? ` by ${token.created_by}` : ''}`), expiryText(token, now), use].join(' · '),
    end: endOf(token, now),
  }
}

function expiryText({ expires_at: at }: Token, now: number): string {
  if (at === null) return 'never expires'
  return `${at <= now ? 'expired' : 'expires'} ${moment(at, now)}`
}

function endOf(token: Token, now: number): string {
  if (token.revoked_at !== null) return `revoked ${moment(token.revoked_at, now)}`
  if (token.expires_at !== null && token.expires_at <= now) return 'expired'
  return token.is_disabled ? 'account disabled' : ''
}

/** Those that are worth something first, and of each kind the newest. */
export function tokenLines(tokens: readonly Token[], now: number): TokenLine[] {
  const lines = tokens.map((token) => tokenLine(token, now))
  return lines.sort((a, b) => Number(a.end !== '') - Number(b.end !== '') || b.id - a.id)
}

const TOKEN_ROLES: readonly [TokenRole, string][] = [
  ['agent', 'sends reports for the hosts below'],
  ['viewer', 'read access'],
  ['user', 'same access as a user'],
  ['admin', 'full access'],
  ['calendar', 'reads the reservation calendar only'],
]

/** What somebody may hand out: no more than they have. */
export function tokenRoles(me: Me): readonly [TokenRole, string][] {
  return me.may_administer ? TOKEN_ROLES : TOKEN_ROLES.filter(([role]) => role !== 'agent' && role !== 'admin')
}

const DAY = 86_400
export const LIFETIMES: readonly [label: string, days: number][] = [
  ['30 days', 30],
  ['90 days', 90],
  ['1 year', 365],
  ['never', 0],
]

/** Null: never. */
export function expiresAt(days: number, now: number): number | null {
  return days === 0 ? null : Math.round(now + days * DAY)
}

export interface AuditLine {
  id: number
  when: string
  what: string
  /** Empty where it was done. */
  outcome: string
  more: string
}

export function auditLine(entry: AuditEntry, now: number): AuditLine {
  return {
    id: entry.id,
    when: moment(entry.at, now),
    what: plain(`${entry.who}: ${entry.action}${entry.subject && entry.subject !== entry.who ? ` ${entry.subject}` : ''}`),
    outcome: entry.outcome === 'done' ? '' : plain(entry.outcome),
    more: plain([entry.details, ...(entry.address ? [`from ${entry.address}`] : [])].filter(Boolean).join(' · ')),
  }
}
