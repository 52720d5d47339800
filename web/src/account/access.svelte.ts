/** Who uses the page, as the hub sees it: asked at the start, and again whenever the hub no longer knows them. */
import { logOut, logOutEverywhere, readMe } from '../api/accounts'
import { watchUnauthorized, type Answer } from '../api/request'
import type { Me } from '../api/types'
import { loginGate, identity, isKnown, secretIn } from './access'

export class Access {
  /** Null until the hub has said it, and where it does not say. */
  me = $state.raw<Me | null>(null)
  isAsked = $state(false)
  /** Why the hub does not even say who asks. */
  words = $state('')
  /** What is to be said at the door. */
  note = $state('')
  secret = $state<string | null>(null)
  readonly door = $derived(loginGate(this.me, this.secret))
  readonly identity = $derived(identity(this.me))
  private isAsking = false

  /** `me` is whom the page itself names; null: the hub has to be asked first. */
  start(me: Me | null = null): void {
    watchUnauthorized(() => void this.ask())
    if (me === null) return void this.ask()
    this.take(me)
    this.isAsked = true
  }

  /** While one question is under way a second one waits for nothing: the answer is the same. */
  async ask(): Promise<void> {
    if (this.isAsking) return
    this.isAsking = true
    const answer = await readMe()
    this.isAsking = false
    this.words = 'refused' in answer ? answer.refused.message : ''
    if ('done' in answer) this.take(answer.done)
    this.isAsked = true
  }

  /** Somebody logged in: here they are. */
  enter(me: Me): void {
    this.secret = null
    this.note = ''
    this.me = me
  }

  /** Takes the secret out of an address; true when there was one, and then it should not stay there. */
  readLink(hash: string): boolean {
    const secret = secretIn(hash)
    if (secret === null) return false
    this.secret = secret
    void this.ask()
    return true
  }

  logOut(): Promise<Answer<object>> {
    return this.leave(() => logOut(false))
  }

  /** Here, and where the user logged in: the browser leaves this page for that. */
  async logOutAtProvider(): Promise<Answer<object>> {
    const answer = await logOut(true)
    if ('refused' in answer) return answer
    if (answer.done.provider_url) location.assign(answer.done.provider_url)
    else await this.ask()
    return answer
  }

  logOutEverywhere(): Promise<Answer<object>> {
    return this.leave(logOutEverywhere)
  }

  private async leave(way: () => Promise<Answer<object>>): Promise<Answer<object>> {
    const answer = await way()
    if ('refused' in answer) return answer
    const known = await readMe()
    if ('done' in known) this.enter(known.done)
    return answer
  }

  private take(me: Me): void {
    if (me.note) this.note = me.note
    else if (isKnown(this.me) && me.kind === 'nobody') this.note = 'Your session has ended. Log in again.'
    else if (this.secret !== null && me.can_log_in) this.note = 'This link creates the first admin account, but this hub already has accounts. Log in with one of them.'
    if (me.can_log_in) this.secret = null
    this.me = me
  }
}
