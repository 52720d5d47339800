/** Who somebody is to the hub, and what admins do about accounts, tokens and the audit log. */
import { ask, type Answer } from './ask'
import type { Account, AccountChange, AuditEntry, MadeToken, Me, PersonalMutes, NewAccount, NewToken, Session, Token } from './types'

/** The page waits for this one before it shows anything. */
const FIRST_PATIENCE_MS = 5_000

export const readMe = (): Promise<Answer<Me>> => ask('api/v1/me', 'GET', undefined, FIRST_PATIENCE_MS)
export const logIn = (name: string, password: string): Promise<Answer<Me>> => ask('api/v1/login', 'POST', { name, password })
export const logOut = (): Promise<Answer<object>> => ask('api/v1/logout', 'POST')
export const logOutEverywhere = (): Promise<Answer<object>> => ask('api/v1/logout-everywhere', 'POST')
export const changePassword = (old: string, fresh: string): Promise<Answer<Me>> => ask('api/v1/me/password', 'POST', { old, new: fresh })
export const readPersonalMutes = (): Promise<Answer<PersonalMutes>> => ask('api/v1/me/mutes')
/** From then on these rules, and no others. */
export const changePersonalMutes = (rules: string[]): Promise<Answer<PersonalMutes>> => ask('api/v1/me/mutes', 'PUT', { rules })
export const listSessions = (): Promise<Answer<{ sessions: Session[] }>> => ask('api/v1/me/sessions')

/** `secret` is in the link that the hub printed. */
export function makeFirstAdmin(secret: string, name: string, password: string): Promise<Answer<Me>> {
  return ask('api/v1/first-admin', 'POST', { secret, name, password })
}

export const listAccounts = (): Promise<Answer<{ accounts: Account[] }>> => ask('api/v1/accounts')
export const addAccount = (account: NewAccount): Promise<Answer<Account>> => ask('api/v1/accounts', 'POST', account)
export const changeAccount = (name: string, change: AccountChange): Promise<Answer<Account>> => ask(accountAt(name), 'PATCH', change)
export const removeAccount = (name: string): Promise<Answer<object>> => ask(accountAt(name), 'DELETE')

export const listTokens = (): Promise<Answer<{ tokens: Token[] }>> => ask('api/v1/tokens')
export const createToken = (token: NewToken): Promise<Answer<MadeToken>> => ask('api/v1/tokens', 'POST', token)
export const revokeToken = (id: number): Promise<Answer<object>> => ask(`api/v1/tokens/${id}`, 'DELETE')

/** The newest first; `before` is the id of the last one that is known. */
export function readAudit(limit: number, before?: number): Promise<Answer<{ entries: AuditEntry[] }>> {
  return ask(`api/v1/audit?limit=${limit}${before === undefined ? '' : `&before=${before}`}`)
}

function accountAt(name: string): string {
  return `api/v1/accounts/${encodeURIComponent(name)}`
}
