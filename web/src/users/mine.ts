/** Who "mine" is about where nobody is logged in: a login that this browser keeps. */
const KEY = 'gpudeck.login'

export function keptLogin(): string {
  try {
    return localStorage.getItem(KEY) ?? ''
  } catch {
    return ''
  }
}

/** An empty one is forgotten. */
export function keepLogin(login: string): void {
  try {
    if (login === '') localStorage.removeItem(KEY)
    else localStorage.setItem(KEY, login)
  } catch {
    // A browser that keeps nothing asks again.
  }
}

/** When the month of that moment began, by the viewer's calendar. Unix seconds. */
export function monthStart(now: number): number {
  const at = new Date(now * 1000)
  return new Date(at.getFullYear(), at.getMonth(), 1).getTime() / 1000
}
