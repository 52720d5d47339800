/** Who somebody is to the hub, and what admins do about accounts, tokens and the audit log. */
import { request, type Answer } from './request'
import type { Account, AccountChange, AuditEntry, MadeToken, Me, PendingLogin, PersonalMutes, NewAccount, NewToken, SavedView, Session, Token, Trial } from './types'

/** The page waits for this one before it shows anything. */
const FIRST_TIMEOUT_MS = 5_000

export const readMe = (): Promise<Answer<Me>> => request('get', '/api/v1/me', { timeoutMs: FIRST_TIMEOUT_MS })
export const logIn = (name: string, password: string): Promise<Answer<Me>> => request('post', '/api/v1/login', { body: { name, password } })
export const logOut = (atProvider: boolean): Promise<Answer<{ provider_url?: string | null }>> => request('post', '/api/v1/logout', atProvider ? { query: { at_provider: true } } : {})
export const logOutEverywhere = (): Promise<Answer<object>> => request('post', '/api/v1/logout-everywhere')
export const changePassword = (old: string, fresh: string): Promise<Answer<Me>> => request('post', '/api/v1/me/password', { body: { old, new: fresh } })
export const readPersonalMutes = (): Promise<Answer<PersonalMutes>> => request('get', '/api/v1/me/mutes')
/** From then on these rules, and no others. */
export const changePersonalMutes = (rules: string[]): Promise<Answer<PersonalMutes>> => request('put', '/api/v1/me/mutes', { body: { rules } })
export const readSavedViews = (): Promise<Answer<{ views: SavedView[] | null }>> => request('get', '/api/v1/me/views')
/** From then on these, and no others. */
export const keepSavedViews = (views: SavedView[]): Promise<Answer<object>> => request('put', '/api/v1/me/views', { body: { views } })
export const listSessions = (): Promise<Answer<{ sessions: Session[] }>> => request('get', '/api/v1/me/sessions')
export const listAllSessions = (): Promise<Answer<{ sessions: Session[] }>> => request('get', '/api/v1/sessions')
/** `isAny`: that of any account, which only admins may end. */
export function endSession(id: string, isAny: boolean): Promise<Answer<object>> {
  const path = { session_id: id }
  return isAny ? request('delete', '/api/v1/sessions/{session_id}', { path }) : request('delete', '/api/v1/me/sessions/{session_id}', { path })
}
/** The program that waits under a code. */
export const readDeviceLogin = (code: string): Promise<Answer<PendingLogin>> => request('get', '/api/v1/device/{user_code}', { path: { user_code: code } })
export function decideDeviceLogin(code: string, isApproved: boolean): Promise<Answer<{ redirect: string }>> {
  return request('post', '/api/v1/device/{user_code}', { path: { user_code: code }, body: { is_approved: isApproved } })
}

/** `secret` is in the link that the hub printed. */
export function makeFirstAdmin(secret: string, name: string, password: string): Promise<Answer<Me>> {
  return request('post', '/api/v1/first-admin', { body: { secret, name, password } })
}

export const listAccounts = (): Promise<Answer<{ accounts: Account[] }>> => request('get', '/api/v1/accounts')
export const addAccount = (account: NewAccount): Promise<Answer<Account>> => request('post', '/api/v1/accounts', { body: account })
export const changeAccount = (name: string, change: AccountChange): Promise<Answer<Account>> => request('patch', '/api/v1/accounts/{name}', { path: { name }, body: change })
export const removeAccount = (name: string): Promise<Answer<object>> => request('delete', '/api/v1/accounts/{name}', { path: { name } })

/** A login to be tried: `url` is to be opened, `readTrial` then says what came of it. In a directory, `user` is looked up at once. */
export const tryLogin = (provider: string, user?: { name: string; password: string }): Promise<Answer<Trial>> => request('post', '/api/v1/login/trials', { body: { provider, ...user } })
export const readTrial = (id: string): Promise<Answer<Trial>> => request('get', '/api/v1/login/trials/{trial_id}', { path: { trial_id: id } })

export const listTokens = (): Promise<Answer<{ tokens: Token[] }>> => request('get', '/api/v1/tokens')
export const createToken = (token: NewToken): Promise<Answer<MadeToken>> => request('post', '/api/v1/tokens', { body: token })
export const revokeToken = (id: number): Promise<Answer<object>> => request('delete', '/api/v1/tokens/{token_id}', { path: { token_id: id } })

/** The newest first; `before` is the id of the last one that is known. */
export function readAudit(limit: number, before?: number): Promise<Answer<{ entries: AuditEntry[] }>> {
  return request('get', '/api/v1/audit', { query: { limit, before } })
}
