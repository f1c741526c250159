"""Column names that suggest an identifier of persons, in the large languages.

Only the name decides, because the answer decides which columns a release leaves out: a stored type or a value could
depend on one cell. A name suggests a person if all of its words are of persons (customer, Kunde), of their names and
numbers (email, Steuernummer) or of identifiers (id, code), or if it ends like an identifier of anything: ``hadm_id``,
``room_no``, ``zip_code``. ``customer_age`` and ``num_children`` do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from unicodedata import category, normalize

from dpdist.core.text import visible

_LETTERS = str.maketrans({
    "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "\u0131": "i", "æ": "ae", "Æ": "AE", "œ": "oe", "đ": "d", "Đ": "D",
    "ß": "ss",
})  # fmt: skip


def _folded(text: str) -> str:
    """Return text without accents, in one form of its letters."""
    if text.isascii():
        return text
    return "".join(mark for mark in normalize("NFKD", text.translate(_LETTERS)) if category(mark)[0] != "M")


def _words(text: str) -> frozenset[str]:
    return frozenset(_folded(text).lower().split())


_OWNERS = _words("""
    account applicant bene beneficiary borrower buyer candidate card caregiver child citizen claimant client clinician
    consumer cust customer debtor doctor donor driver email employee enrollee family guest hh household idno individual
    inmate insured learner lender login member mother mrn name nhs nin nino nurse operator owner participant passenger
    pat patient payee payer person phone physician player policyholder proband provider pt pupil record recipient
    resident respondent seller ssn staff student subj subject subscriber supplier taxpayer teacher telephone tenant user
    usubj username visitor volunteer voter worker pid pidp pernum seqn medicare medicaid passport license licence
    address fax mobile handle nickname surname forename firstname lastname fullname middlename givenname familyname
    socialsecurity securitesociale seguridadsocial nationalinsurance secu aadhaar npi

    kunde kunden person personen personal patienten mitarbeiter mitarbeitende mitglied mitglieds nutzer benutzer
    studierende studenten matrikel schuler schueler teilnehmer probanden versicherte versicherten bewohner einwohner
    haushalt haushalts familie nachname vorname familienname nutzername benutzername telefon handy mail konto ausweis
    steuer sozialversicherung sozialversicherungs rentenversicherung krankenversicherung versicherung versicherungs
    versicherter spender burger buerger wahler fahrer lehrer arzt ahv svnr

    patiente cliente personne salarie employe employee etudiant eleve utilisateur adherent membre assure abonne usager
    nom prenom courriel compte foyer menage famille nir nss matricule allocataire beneficiaire medecin conducteur

    paciente persona empleado empleada trabajador estudiante alumno alumna usuario usuaria miembro afiliado asegurado
    contribuyente nombre apellido apellidos telefono correo cuenta hogar familia dni nie nif rut rfc curp cedula
    pasaporte expediente beneficiario ciudadano conductor medico celular movil

    pessoa funcionario empregado aluno estudante utilizador utente membro socio nome sobrenome apelido telefone conta
    cpf cns nis pis prontuario matricula beneficiario cidadao motorista

    paziente dipendente impiegato studente alunno assistito contribuente cognome cellulare conto famiglia matricola
    tessera fiscale cittadino

    klant klanten persoon persoons persoonlijk medewerker werknemer leerling gebruiker lid deelnemer verzekerde naam
    voornaam achternaam telefoon rekening huishouden gezin bsn burgerservice sofi bewoner

    kund medarbetare medarbejder ansatt anstalld elev bruger bruker anvandare medlem deltagare deltaker deltager namn
    navn fornamn fornavn efternamn etternavn efternavn epost cpr fodsels samordnings hushall husstand

    potilas asiakas henkilo henkilotunnus hetu tyontekija opiskelija kayttaja jasen nimi etunimi sukunimi puhelin

    pacjent pacjenta klient klienta osoba osoby pracownik pracownika uzytkownik uzytkownika uczen ucznia studenta
    nazwisko imie pesel czlonek pacient zakaznik rodne zamestnanec uzivatel

    hasta musteri kimlik tckn kisi calisan ogrenci kullanici uye soyad eposta adsoyad isim

    pasien pelanggan karyawan siswa pengguna nasabah nama nik anggota khachhang benhnhan hoten nhanvien

    пациент пациента клиент клиента пользователь пользователя телефона сотрудник сотрудника работник работника
    студент студента ученик ученика участник участника покупатель покупателя человек житель
    фамилия имя отчество фио телефон почта емейл
    снилс инн паспорт паспорта логин донор донора водитель водителя пацієнт пацієнта клієнт клієнта прізвище

    مريض المريض عميل العميل زبون الزبون شخص الشخص موظف الموظف طالب الطالب مستخدم المستخدم مشترك عضو اسم الاسم هاتف
    الهاتف جوال الجوال بريد البريد هوية الهوية بیمار مشتری نام تلفن

    रोगी मरीज ग्राहक व्यक्ति कर्मचारी छात्र उपयोगकर्ता सदस्य नाम फोन मोबाइल ईमेल आधार রোগী গ্রাহক নাম

    ασθενης πελατης ονομα τηλεφωνο αμκα αφμ מטופל לקוח שם טלפון
""")
"""Words of persons, and of names and numbers that are theirs."""
_NUMBERS = _words("""
    code guid id ident identifier key no nr num number nummer ref reference uid uuid kennung kennzahl schluessel
    schlussel identifiant numero cle codigo clave identificador chave codice chiave identificativo sleutel nummeret kod
    kode tunnus numer numerem cislo numara numarasi no nomor номер код ид идентификатор ідентифікатор رقم معرف رمز کد
    क्रमांक संख्या नंबर आईडी कोड আইডি αριθμος κωδικος מספר קוד
""")
"""Words of identifiers."""
_ENDS = _NUMBERS - _words("ref reference cle संख्या")
_FIRST = _words("id codigo codice identificador identifiant identificativo kod код ид идентификатор معرف رمز")
"""Identifiers that come first in some languages; numbers that do are mostly counts."""
_BESIDE = _words("""
    a e de du da do dos del des of la le el il der di the full first last middle given maiden legal birth home work
    cell mobile contact primary secondary national social security insurance health medical tax public unique global
    anon anonymized anonymised anonymous pseudo hashed encrypted masked hash internal external study local ip mac street
    billing postal mailing electronic identity secu sociale securite seguridad seguro saude sanitaria elektronicznej
    osobowy osobni tc electronico
""")
"""Words that may stand beside those of persons."""
_ALONE = _words("""
    cid eid fid iid rid sid persid persnr hhid hhidpn hhnr caseid pnr idind lopnr lopenr empno rollno hospitalno respid
    famid twinid indid msisdn imsi imei iban acct acctnum ccnum creditcard holder accountholder athlete defendant
    arrestee tin ein tfn kennitala tckimlik orcid upn vin
""")
_THINGS = _words("""
    admission case claim device encounter event global group hadm household icustay icu local national order policy
    profile record row sample session site stay store study subject team ticket transaction trip unique visit
""")
"""Words before ``id`` in a name without separators, which ends in id like acid or grid otherwise."""
_MEASURED = _words("""
    atomic cetane condition copy day education froude grashof iodine lap mach mass month nusselt octane peclet prandtl
    quantum rayleigh reynolds trial wave week yes
""")
"""Words before a number that is measured, and before ``no``."""
_SUFFIXES = r"nummer|number|numero|nr|identifier|kennung|(?<!en)(?<!de)(?<!uni)(?<!op)code"
_JOINED = re.compile(f"s?(?:{'|'.join(sorted(_NUMBERS | _words('email mail name nom phone')))})?$")
_SUFFIX = re.compile(rf"\w{{2,}}(?:{_SUFFIXES})$")
_DIGITS = re.compile(r"\d+")
_OXIDE = re.compile(r"(?<![a-z])no(?=\d)", re.IGNORECASE)  # NO2 is no number
_UPPER = "A-Z\u0410-\u042f"
_PARTS = re.compile(rf"[{_UPPER}]+(?![^\W\d_{_UPPER}])|[{_UPPER}]?[^\W\d_{_UPPER}]+")

_UNSPACED_OWNERS = _folded(
    "受试者|患者|病人|客户|顾客|顧客|用户|會員|会员|会員|员工|員工|职工|社員|従業員|職員|学生|生徒|居民|住民|户主|家庭|世帯|参与者|被験者|利用者|ユーザー|ユーザ"
    "|姓名|名字|氏名|名前|お名前|身份证|身分證|护照|手机|電話|电话|邮箱|电子邮件|メールアドレス|メール|社保|医保|マイナンバー|個人|学号|工号|病历|病歷|住院|会社員"
    "|账户|账号|帐号|口座|환자|고객|회원|사용자|직원|학생|참여자|이름|성명|성함|주민등록|주민|전화|휴대폰|이메일|계좌|사번|학번|ผู้ป่วย|ลูกค้า|ชื่อ"
)
_UNSPACED_NUMBERS = _folded("编号|編號|番号|号码|號碼|号|號|代码|编码|コード|번호|코드|아이디|รหัส|หมายเลข")
_UNSPACED = re.compile(f"{_UNSPACED_OWNERS}|{_UNSPACED_NUMBERS}")
_UNSPACED_END = re.compile(f"(?:{_folded('编号|編號|番号|号码|號碼|代码|编码|コード|번호|코드|아이디')})$")


def names_person(name: str) -> bool:
    """Return whether a column is named like an identifier of persons.

    >>> [name for name in ("person_id", "USUBJID", "obs/donor", "患者番号", "customer_age") if names_person(name)]
    ['person_id', 'USUBJID', 'obs/donor', '患者番号']
    """
    return _names_person(_DIGITS.sub("0", visible(name).rpartition("/")[2]))


@lru_cache(1 << 12)  # of many columns, most differ by their numbers
def _names_person(name: str) -> bool:
    text = _folded(_OXIDE.sub("", name))
    parts = [part.lower() for part in _PARTS.findall(text)]
    joined = "".join(parts)
    person = "".join(part for part in parts if part not in _NUMBERS)
    if not parts:
        return False
    if _names_owner(parts) or person in _OWNERS or joined in _ALONE or _named_unspaced(joined):
        return True
    *before, last = parts
    if before and before[-1] in _MEASURED:
        return False
    return last in _ENDS or (before != [] and parts[0] in _FIRST) or _SUFFIX.match(last) is not None or _of_thing(last)


def _names_owner(parts: list[str]) -> bool:
    """Whether all words are of a person or beside one."""
    owners = {part for part in parts if not _OWNERS.isdisjoint({part, _JOINED.sub("", part)})}
    return bool(owners) and owners | _NUMBERS | _BESIDE | _ALONE >= {*parts}


def _of_thing(word: str) -> bool:
    return word.endswith(("id", "uid")) and not _THINGS.isdisjoint({word[:-2], word[:-3]})


def _named_unspaced(word: str) -> bool:
    """Whether a name in a script without spaces is of a person, or ends like an identifier."""
    found = _UNSPACED.findall(word)
    whole = re.search(_UNSPACED_OWNERS, word) is not None and "".join(found) == word.removesuffix("id").removeprefix(
        "id"
    )
    return whole or _UNSPACED_END.search(word) is not None


def person_columns(names: Iterable[str]) -> list[str]:
    """Return the columns named like identifiers of persons; of a pair of answers, ``smoker_yes`` is none."""
    names = list(names)
    answers = {name.lower() for name in names if name.lower().endswith("yes")}
    return [name for name in names if names_person(name) and f"{name.lower().removesuffix('no')}yes" not in answers]
