/** Who is logged in, as the hosts know them. */
import type { Me } from '../api/types'
import { isKnown } from './access'

/** Their names on the hosts; the account's own where the hub knows of no others. Empty for whoever has no name. */
export function loginsOf(me: Me | null): string[] {
  if (!isKnown(me)) return []
  return me.logins.length > 0 ? me.logins : [me.name]
}
